// Converts an image on a macexec host, the way an orchestrator does: everything may
// be cut off at any time, this program too, and a second run under the same key goes
// on where the first one was. Nothing runs twice.
//
//   node convert.mjs SOCKET KEY IMAGE RESULT.png
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, rename, stat } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

import { connect } from './macexec.mjs';

const SETTLED = ['JOB_STATE_COMPLETED', 'JOB_STATE_FAILED', 'JOB_STATE_CANCELLED', 'JOB_STATE_UNKNOWN'];

// insist repeats what may be repeated: requests that read, uploads and downloads from
// an offset, and a submission under its key. UNAVAILABLE says that the daemon was not
// reached or went away; anything else is its answer. An attempt calls moved whenever
// something got on: only when there is nothing but failure for as long as the patience
// is it the end. A watch may be idle for long, which is no failure.
async function insist(what, attempt, { patience = 60_000, idle = false } = {}) {
  let failing; // since when
  const moved = () => (failing = undefined);
  for (;;) {
    const begun = Date.now();
    try {
      return await attempt(moved);
    } catch (error) {
      if (idle && Date.now() - begun > 5_000) moved();
      failing ??= Date.now();
      if (error.code !== 14 /* UNAVAILABLE */ || Date.now() - failing > patience) throw error;
      console.error(`${what}: ${error.details}; trying again`);
      await sleep(200 + Math.random() * 300);
    }
  }
}

// upload sends what the host does not have yet of a file.
async function upload(host, path) {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path)) hash.update(chunk);
  const sha256 = hash.digest('hex');
  const size = (await stat(path)).size;
  let most = 0; // what has come in, by the host's own word
  return insist('upload', async (moved) => {
    const there = await host.files.call('StatUpload', { sha256, size });
    if (there.file) return there.file.reference;
    const offset = Number(there.offset);
    if (offset > most) {
      most = offset;
      moved();
    }
    console.error(`uploading ${size - offset} of ${size} bytes`);
    async function* parts() {
      yield { start: { sha256, size, offset } };
      for await (const chunk of createReadStream(path, { start: offset, highWaterMark: 256 * 1024 })) yield { chunk };
    }
    const { file } = await host.files.send('UploadFile', parts());
    return file.reference;
  });
}

// wait follows a job until nothing more will happen to it. A broken stream goes on
// after the last cursor: no event is left out.
async function wait(host, id) {
  let job;
  let after = 0;
  await insist('watch', async (moved) => {
    // Of one job, the first event is the job as it is; the others are steps.
    for await (const { event } of host.jobs.receive('WatchJobs', { job_id: id, after, progress: true })) {
      if (event.cursor !== '0' && event.cursor !== after) {
        after = event.cursor;
        moved();
      }
      if (event.progress?.percent) console.error(`${Math.round(event.progress.percent)} %`);
      if (event.job) job = event.job;
      if (job && SETTLED.includes(job.state)) return;
    }
  }, { idle: true });
  return job;
}

// download goes on where an earlier one was, and gives the file its name when its
// digest is right.
async function download(host, reference, path) {
  const part = `${path}.part`;
  const out = await open(part, 'a+');
  try {
    const file = await insist('download', async (moved) => {
      let { size: offset } = await out.stat();
      let info;
      for await (const message of host.files.receive('DownloadFile', { reference, offset })) {
        info ??= message.file;
        if (message.chunk.length === 0) continue;
        offset += (await out.write(message.chunk)).bytesWritten;
        moved();
      }
      return info;
    });
    const hash = createHash('sha256');
    for await (const chunk of createReadStream(part)) hash.update(chunk);
    if (hash.digest('hex') !== file.sha256) throw new Error(`${part} is not what the host has; remove it and try again`);
  } finally {
    await out.close();
  }
  await rename(part, path);
}

async function main([socket, key, image, result]) {
  if (!result) throw new Error('usage: node convert.mjs SOCKET KEY IMAGE RESULT.png');
  const host = connect(`unix:${socket}`);
  try {
    const input = await upload(host, image);
    const call = {
      idempotency_key: key,
      tool: 'convert_image',
      arguments: Buffer.from(JSON.stringify({ input, format: 'png' })),
      context: { tool_call_id: `example-${key}` },
    };
    // The very same call, as often as it takes: the host starts it once.
    const { job: accepted, replayed } = await insist('submit', () => host.jobs.call('SubmitJob', call));
    console.error(`job ${accepted.id}${replayed ? ' (seen before: nothing new was started)' : ''}`);
    const job = await wait(host, accepted.id);
    if (job.state !== 'JOB_STATE_COMPLETED') throw new Error(`the job is ${job.state}: ${job.message}`);
    await download(host, `job:${job.id}/${job.artifacts[0].name}`, result);
    // The result is JSON text, so that its numbers keep their digits.
    console.log(job.result.toString());
  } finally {
    host.close();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  main(process.argv.slice(2)).catch((error) => {
    console.error(`Error: ${error.macexec?.message ?? error.details ?? error.message}`);
    for (const finding of error.macexec?.findings ?? []) console.error(`  ${finding.pointer}: ${finding.message}; ${finding.hint}`);
    process.exitCode = 1;
  });
}
