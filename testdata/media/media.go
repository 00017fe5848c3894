// Package media embeds a few real media files, so that the demo and the tests of
// every room work on the same bytes wherever they run. Where the files come from
// and under which licences is told in README.md. Nothing but the files lives here.
package media

import "embed"

// Names of the embedded files.
const (
	Photo     = "photo.jpg"     // 1024×768 JPEG
	Clip      = "clip.mp4"      // 3.2 s of H.264 and AAC, 640×360
	Speech    = "speech.wav"    // 2.9 s of 16-bit PCM, 22.05 kHz, mono
	Recording = "recording.ogg" // 5.4 s of Vorbis, 44.1 kHz, mono
)

// Files holds the files by the names above.
//
//go:embed photo.jpg clip.mp4 speech.wav recording.ogg
var Files embed.FS
