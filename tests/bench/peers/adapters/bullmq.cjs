// BullMQ. https://docs.bullmq.io/guide/workers/concurrency: many jobs at once where they wait for others;
// https://docs.bullmq.io/guide/queues/adding-bulks: `addBulk`; https://docs.bullmq.io/guide/workers/auto-removal-of-jobs: what
// is kept is said to the worker, not with each job, so that the options of a job fit into 64 bytes and its hash stays small.
// A job whose worker has died is stalled, and taken again after `lockDuration` and `stalledInterval`, by default 30 s each.
// It takes and answers what orders.py says.
"use strict";
const fs = require("node:fs");
const { Queue, Worker } = require("bullmq");

const CONCURRENCY = 200;
const CHUNK = 1000;
const SLOW_MS = 300;
const { hostname: host, port } = new URL(process.env.PEER_URL);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const kept = process.env.PEER_KEEP === "1" ? {} : { removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } };

function* jobs(order) {
  for (let i = 0; i < order.count; i++) {
    const due = order.first_ms + Math.floor(Math.random() * order.over_ms);
    const jobId = order.tag + String(i).padStart(22 - order.tag.length, "0");
    yield { jobId, due, data: order.job === "noop" ? {} : { due } };
  }
}

async function arm(order) {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const options = ({ jobId, due }) => ({ jobId, delay: Math.ceil(due - Date.now()) });
  let begin = process.hrtime.bigint();
  let armed = 0;
  let chunk = [];
  for (const job of jobs(order)) {
    if (armed++ === order.warm_up) begin = process.hrtime.bigint();
    if (order.way === "single") {
      await queue.add(order.job, job.data, options(job));
    } else if (chunk.push({ name: order.job, data: job.data, opts: options(job) }) === CHUNK) {
      await queue.addBulk(chunk);
      chunk = [];
    }
  }
  if (chunk.length) await queue.addBulk(chunk);
  console.log(JSON.stringify({ seconds: Number(process.hrtime.bigint() - begin) / 1e9 }));
  await queue.close();
}

function work() {
  const starts = fs.openSync(process.env.PEER_STARTS, "a", 0o600);
  const counter = fs.openSync(process.env.PEER_COUNT, "w", 0o600);
  let ticks = 0n;
  let written = 0n;
  const runs = fs.openSync(process.env.PEER_RUNS, "a", 0o600);
  const now = () => performance.timeOrigin + performance.now();
  const slow = async (job) => {
    fs.writeSync(runs, `begun ${job.id} ${job.data.due} ${now()}\n`);
    await new Promise((done) => setTimeout(done, SLOW_MS));
    fs.writeSync(runs, `ended ${job.id} ${job.data.due} ${now()}\n`);
  };
  const process_ = async (job) => {
    if (job.name === "noop") ticks += 1n;
    else if (job.name === "slow") await slow(job);
    else fs.writeSync(starts, `${performance.timeOrigin + performance.now() - job.data.due}\n`);
  };
  setInterval(() => {
    if (ticks === written) return;
    fs.writeSync(counter, BigUint64Array.of(ticks), 0, 8, 0);
    written = ticks;
  }, 5);
  new Worker("bench", process_, { connection, concurrency: CONCURRENCY, ...kept });
  process.stdin.on("end", () => process.exit()).resume();
}

if (process.argv[2] === "arm") arm(JSON.parse(fs.readFileSync(0, "utf8")));
else work();
