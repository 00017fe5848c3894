package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	macexecv1 "github.com/macexec/macexec/proto/macexec/v1"
	"github.com/macexec/macexec/testdata/media"
)

// clipSeconds is how long the exported video is.
const clipSeconds = "20"

// workFolder is the name of a tool's own folder in an attempt's.
const workFolder = "work"

// makeClip repeats the short clip of the repository until it is long enough.
func makeClip(ctx context.Context, dir, to string) error {
	data, err := fs.ReadFile(media.Files, media.Clip)
	if err != nil {
		return err
	}
	short := filepath.Join(dir, media.Clip)
	if err := os.WriteFile(short, data, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ffmpeg", "-v", "error", "-stream_loop", "-1", "-i", short,
		"-t", clipSeconds, "-c", "copy", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ffmpeg: %w: %s", err, out)
	}
	return nil
}

// cost is what one export took; ran is the time in which the command itself ran.
type cost struct{ cpu, tool, wall, ran time.Duration }

// export measures a real job beside the very same command without macexec.
func (b *bench) export(ctx context.Context) error {
	return b.with(ctx, "e", func(d *daemon) error {
		clip := filepath.Join(d.state, "projects", "default", "clip.mp4")
		if err := makeClip(ctx, b.dir, clip); err != nil {
			return err
		}
		_, argv, err := d.exportOnce(ctx, 0) // warms up, and tells the command
		if err != nil {
			return err
		}
		var cpu, tool, wall, ran, bareCPU, bareWall []time.Duration
		for i := range b.pairs {
			var job, bare cost
			both := []func() error{
				func() (err error) { job, _, err = d.exportOnce(ctx, i+1); return err },
				func() (err error) { bare, err = b.exportBare(ctx, argv, clip); return err },
			}
			for k := range both { // either goes first in turn
				if err := both[(i+k)%2](); err != nil {
					return err
				}
			}
			cpu, tool = append(cpu, job.cpu), append(tool, job.tool)
			wall, ran = append(wall, job.wall), append(ran, job.ran)
			bareCPU, bareWall = append(bareCPU, bare.cpu), append(bareWall, bare.wall)
		}
		b.addExport(cost{cpu: median(cpu), tool: median(tool), wall: median(wall), ran: median(ran)},
			cost{cpu: median(bareCPU), wall: median(bareWall)})
		return nil
	})
}

func (b *bench) addExport(job, bare cost) {
	add := func(what string, value, yard time.Duration, floor string) {
		ratio := yardstick
		if value != yard {
			ratio = times(float64(value), float64(yard))
		}
		b.table.add(row{
			what:   fmt.Sprintf("export of a %s s clip, %s, median of %d", clipSeconds, what, b.pairs),
			figure: fmt.Sprintf("%.2f s", value.Seconds()), ratio: ratio, floor: floor,
		})
	}
	add("bare ffmpeg, CPU", bare.cpu, bare.cpu, "")
	add("ffmpeg inside the job, CPU", job.tool, bare.cpu, "")
	if job.cpu > 0 {
		add("job with daemon, keeper and probes, CPU", job.cpu, bare.cpu, atMost(float64(job.cpu)/float64(bare.cpu), 1.02, "%.2f ×"))
	}
	add("bare ffmpeg, wall", bare.wall, bare.wall, "")
	add("ffmpeg inside the job, wall", job.ran, bare.wall, "")
	most := 1.03*bare.wall.Seconds() + 0.15
	add("job, request to result, wall", job.wall, bare.wall, atMost(job.wall.Seconds(), most, "%.2f s (1.03 × + 0.15 s)"))
}

// exportOnce exports the clip as a job and returns the command that it ran.
func (d *daemon) exportOnce(ctx context.Context, i int) (cost, []string, error) {
	before, err := d.cpu()
	if err != nil {
		return cost{}, nil, err
	}
	begun := time.Now()
	job, err := d.finish(ctx, &macexecv1.SubmitJobRequest{
		Tool: "export_video", IdempotencyKey: fmt.Sprintf("export/%d", i),
		Arguments: fmt.Appendf(nil, `{"project_id":"default","input":"clip.mp4","output":"out%d.mp4","format":"mp4","resolution":"source","include_audio":true}`, i),
	})
	if err != nil {
		return cost{}, nil, err
	}
	wall := time.Since(begun)
	after, err := d.cpu()
	if err != nil {
		return cost{}, nil, err
	}
	usage := job.GetUsage()
	tool := time.Duration((usage.GetCpuUserSeconds() + usage.GetCpuSystemSeconds()) * float64(time.Second))
	ran := time.Duration(usage.GetRunningSeconds() * float64(time.Second))
	return cost{cpu: after - before, tool: tool, wall: wall, ran: ran}, job.GetAttempts()[0].GetIntent().GetArgv(), nil
}

// exportBare runs a job's command in a folder of its own that looks like the job's.
func (b *bench) exportBare(ctx context.Context, argv []string, clip string) (cost, error) {
	dir, err := os.MkdirTemp(b.dir, "bare")
	if err != nil {
		return cost{}, err
	}
	defer os.RemoveAll(dir)
	data, err := os.ReadFile(clip)
	if err != nil {
		return cost{}, err
	}
	var own []string
	for i, arg := range argv {
		if path, ok := strings.CutPrefix(arg, "file:"); ok {
			_, below, found := strings.Cut(path, "/"+workFolder+"/")
			if !found {
				return cost{}, fmt.Errorf("the argument %q names a file outside of the job's folder", arg)
			}
			path = filepath.Join(dir, below)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return cost{}, err
			}
			if argv[i-1] == "-i" {
				if err := os.WriteFile(path, data, 0o600); err != nil {
					return cost{}, err
				}
			}
			arg = "file:" + path
		}
		own = append(own, arg)
	}
	cmd := exec.CommandContext(ctx, own[0], own[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "TMPDIR=" + dir, "LC_ALL=C.UTF-8"}
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return cost{}, fmt.Errorf("%s: %w: %s", own[0], err, out)
	}
	return cost{cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), wall: time.Since(begun)}, nil
}
