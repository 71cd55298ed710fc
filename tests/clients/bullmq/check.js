// BullMQ against a running server: check.js PORT PROTOCOL RESTART_COMMAND. Silent when all is well.

import assert from "node:assert/strict";
import { FlowProducer, Queue, QueueEvents, Worker } from "bullmq";

const [port, protocol] = process.argv.slice(2, 4).map(Number);
const connection = { port, protocol, maxRetriesPerRequest: null };
const PATIENCE_MS = 30_000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function eventually(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    assert.ok(Date.now() < deadline, `not in time: ${what}`);
    await pause(20);
  }
}

// A queue with a worker, for as long as `use` takes.
async function withQueue(name, process, use, options = {}) {
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  const worker = new Worker(name, process, { connection, ...options });
  worker.on("error", (error) => { throw error; });
  await Promise.all([events.waitUntilReady(), worker.waitUntilReady()]);
  try {
    await use(queue, events, worker);
  } finally {
    await worker.close();
    await queue.obliterate({ force: true });
    await Promise.all([events.close(), queue.close()]);
  }
}

async function worksOffJobsInTheirOrder() {
  const done = [];
  const process = async (job) => { done.push(job.data.number); return job.data.number * 2; };
  await withQueue("order", process, async (queue, events) => {
    const wanted = Array.from({ length: 300 }, (_, number) => number);
    const jobs = await queue.addBulk(wanted.map((number) => ({ name: "double", data: { number } })));
    const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, PATIENCE_MS)));
    assert.deepEqual(results, wanted.map((number) => number * 2));
    assert.deepEqual(done, wanted);
    const counts = await queue.getJobCounts("waiting", "active", "completed", "failed");
    assert.deepEqual(counts, { waiting: 0, active: 0, completed: 300, failed: 0 });
  });
}

async function delaysJobs() {
  await withQueue("delayed", async () => Date.now(), async (queue, events) => {
    const asked = Date.now();
    const add = (delay) => queue.add("later", {}, { delay });
    const jobs = [await add(600), await add(200), await add(400)];
    assert.equal(await queue.getDelayedCount(), 3);
    const times = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, PATIENCE_MS)));
    const early = [600, 200, 400].filter((delay, index) => times[index] - asked < delay - 20);
    assert.deepEqual(early, [], "came early");
    assert.ok(times[1] <= times[2] && times[2] <= times[0], `${times}`);
  });
}

async function repeatsJobs() {
  const runs = [];
  await withQueue("repeated", async (job) => { runs.push(job.name); }, async (queue) => {
    await queue.upsertJobScheduler("clock", { every: 150 }, { name: "tick" });
    await eventually("it was run five times", () => runs.length >= 5);
    assert.ok(await queue.removeJobScheduler("clock"));
    await pause(400);
    const before = runs.length;
    await pause(500);
    assert.equal(runs.length, before, "it was run after its end");
    assert.ok(runs.every((name) => name === "tick"));
  });
}

async function triesAgainAndGivesUp() {
  const process = async (job) => {
    if (job.data.never || job.attemptsMade < 2) throw new Error("on purpose");
    return job.attemptsMade;
  };
  await withQueue("failing", process, async (queue, events) => {
    const options = { attempts: 3, backoff: { type: "exponential", delay: 50 } };
    const job = await queue.add("lucky", {}, options);
    assert.equal(await job.waitUntilFinished(events, PATIENCE_MS), 2);
    const hopeless = await queue.add("hopeless", { never: true }, options);
    await assert.rejects(hopeless.waitUntilFinished(events, PATIENCE_MS), /on purpose/);
    assert.equal(await queue.getFailedCount(), 1);
  });
}

async function keepsPrioritiesAndLimits() {
  const done = [];
  const process = async (job) => { done.push([job.opts.priority, Date.now()]); };
  const options = { autorun: false, limiter: { max: 2, duration: 300 } };
  await withQueue("priorities", process, async (queue, _, worker) => {
    for (const priority of [5, 1, 3, 2, 4]) await queue.add("ranked", {}, { priority });
    worker.run();
    await eventually("all are done", () => done.length === 5);
    assert.deepEqual(done.map(([priority]) => priority), [1, 2, 3, 4, 5]);
    assert.ok(done[4][1] - done[0][1] > 500, "two in 300 ms");
  }, options);
}

async function runsChildrenFirst() {
  const done = [];
  const process = async (job) => {
    done.push(job.name);
    return job.name === "parent" ? Object.values(await job.getChildrenValues()).length : 1;
  };
  await withQueue("family", process, async (_, events) => {
    const flow = new FlowProducer({ connection });
    const children = Array.from({ length: 5 }, () => ({ name: "child", queueName: "family", data: {} }));
    const tree = await flow.add({ name: "parent", queueName: "family", data: {}, children });
    assert.equal(await tree.job.waitUntilFinished(events, PATIENCE_MS), 5);
    assert.deepEqual(done, ["child", "child", "child", "child", "child", "parent"]);
    await flow.close();
  });
}

await worksOffJobsInTheirOrder();
await delaysJobs();
await repeatsJobs();
await triesAgainAndGivesUp();
await keepsPrioritiesAndLimits();
await runsChildrenFirst();
process.exit(0);
