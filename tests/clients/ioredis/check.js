// ioredis against a running server: check.js PORT PROTOCOL RESTART_COMMAND. Silent when all is well.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { Redis } from "ioredis";

const [port, protocol] = process.argv.slice(2, 4).map(Number);
const restart = process.argv[4];
const PIPELINE = 1000;

const connect = () => new Redis({ port, protocol, maxRetriesPerRequest: null, retryStrategy: () => 50 });

async function speaksTheProtocolAndKeepsBytes(client) {
  assert.match(String(await client.client("INFO")), new RegExp(`resp=${protocol}\\b`));
  const value = Buffer.from(Array.from({ length: 25600 }, (_, index) => index % 256));
  assert.equal(await client.set("bytes", value, "EX", 1000), "OK");
  assert.deepEqual(await client.getBuffer("bytes"), value);
  assert.equal(await client.get("missing"), null);
  const ttl = await client.ttl("bytes");
  assert.ok(ttl > 0 && ttl <= 1000);
}

async function pipelines(client) {
  const pipeline = client.pipeline();
  for (let turn = 0; turn < PIPELINE; turn++) pipeline.incr("pipelined");
  const replies = await pipeline.exec();
  assert.deepEqual(replies, Array.from({ length: PIPELINE }, (_, index) => [null, index + 1]));
}

async function errorsStayInTheirPlace(client) {
  const [[, done], [error], [, value]] =
    await client.pipeline().set("text", "abc").incr("text").get("text").exec();
  assert.equal(done, "OK");
  assert.match(error.message, /not an integer/);
  assert.equal(value, "abc");
}

async function transacts(client) {
  const replies = await client.multi().set("a", 1).incr("a").mget("a", "none").exec();
  assert.deepEqual(replies, [[null, "OK"], [null, 2], [null, ["2", null]]]);
}

async function losesAWatchedRaceAndThenWins(client, other) {
  await client.watch("a");
  await other.set("a", 10);
  assert.equal(await client.multi().incr("a").exec(), null);
  await client.watch("a");
  assert.deepEqual(await client.multi().incr("a").exec(), [[null, 11]]);
}

async function survivesARestart(client) {
  await promisify(execFile)(restart);
  assert.equal(await client.set("after", "restart"), "OK");
  assert.equal(await client.get("after"), "restart");
}

const [client, other] = [connect(), connect()];
for (const each of [client, other]) each.on("error", () => {}); // the test breaks connections on purpose
await client.flushall();
await speaksTheProtocolAndKeepsBytes(client);
await pipelines(client);
await errorsStayInTheirPlace(client);
await transacts(client);
await losesAWatchedRaceAndThenWins(client, other);
await survivesARestart(client);
await pipelines(client);
client.disconnect();
other.disconnect();
