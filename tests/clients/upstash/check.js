// @upstash/redis against the REST side of a running server: check.js PORT PROTOCOL RESTART_COMMAND. Protocol 2
// asks for plain strings, 3 for base64, the default of the library. Silent when all is well.

import assert from "node:assert/strict";
import net from "node:net";
import { Redis } from "@upstash/redis";

const [port, protocol] = process.argv.slice(2, 4).map(Number);

// Sends commands over RESP, and returns what comes back within a moment.
const overResp = (...commands) =>
  new Promise((resolve, reject) => {
    const socket = net.connect(port, "127.0.0.1", () => socket.write(`${commands.join("\r\n")}\r\nQUIT\r\n`));
    let text = "";
    socket.on("data", (data) => (text += data)).on("end", () => resolve(text)).on("error", reject);
  });

const freePort = () =>
  new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

async function values(redis) {
  assert.equal(await redis.set("text", "value", { ex: 100 }), "OK");
  assert.equal(await redis.get("text"), "value");
  assert.equal(await redis.get("missing"), null);
  assert.ok((await redis.ttl("text")) > 0);
  await redis.set("object", { a: [1, "two", null], b: { c: true } });
  assert.deepEqual(await redis.get("object"), { a: [1, "two", null], b: { c: true } });
  await redis.set("unicode", "grüße 👋 \u0000\n\"");
  assert.equal(await redis.get("unicode"), "grüße 👋 \u0000\n\"");
  assert.equal(await redis.set("text", "other", { nx: true }), null);
  assert.equal(await redis.set("text", "other", { get: true }), "value");
  assert.deepEqual(await redis.mget("text", "missing"), ["other", null]);
  assert.equal(await redis.incrbyfloat("float", 1.5), 1.5);
  assert.equal(await redis.del("text", "missing"), 1);
}

async function collections(redis) {
  assert.equal(await redis.hset("hash", { one: 1, two: "zwei" }), 2);
  assert.deepEqual(await redis.hgetall("hash"), { one: 1, two: "zwei" });
  assert.equal(await redis.hgetall("missing"), null);
  assert.equal(await redis.rpush("list", 1, "b", { c: 3 }), 3);
  assert.deepEqual(await redis.lrange("list", 0, -1), [1, "b", { c: 3 }]);
  assert.equal(await redis.zadd("zset", { score: 1, member: "a" }, { score: 2, member: "b" }), 2);
  assert.deepEqual(await redis.zrange("zset", 0, -1, { withScores: true }), ["a", 1, "b", 2]);
  assert.equal(await redis.sadd("set", "x", "y"), 2);
  assert.deepEqual((await redis.smembers("set")).sort(), ["x", "y"]);
  const id = await redis.xadd("stream", "*", { field: "value" });
  assert.deepEqual(await redis.xrange("stream", "-", "+"), { [id]: { field: "value" } });
  const [cursor, keys] = await redis.scan(0, { match: "h*", count: 1000 });
  assert.deepEqual([String(cursor), keys], ["0", ["hash"]]);
}

async function several(redis) {
  const pipeline = redis.pipeline().set("n", 1).incr("n").get("n");
  assert.deepEqual(await pipeline.exec(), ["OK", 2, 2]);
  assert.deepEqual(await redis.multi().set("n", 5).decr("n").exec(), ["OK", 4]);
  const [first, second] = await Promise.all([redis.get("n"), redis.incr("n")]); // joined into a pipeline
  assert.deepEqual([first, second], [4, 5]);
  const outcomes = await redis.pipeline().set("w", "x").incr("w").exec({ keepErrors: true });
  assert.match(outcomes[1].error, /not an integer/);
}

async function subscribes(redis) {
  const subscription = redis.subscribe("chat");
  const message = new Promise((resolve, reject) => {
    subscription.on("message", resolve);
    subscription.on("error", reject);
  });
  await new Promise((resolve) => subscription.on("subscribe", resolve));
  assert.equal(await redis.publish("chat", { text: "hello, there" }), 1);
  const { channel, message: content } = await message;
  assert.deepEqual([channel, content], ["chat", { text: "hello, there" }]);
  await subscription.unsubscribe();
}

async function scriptsAndErrors(redis) {
  assert.equal(await redis.eval("return ARGV[1]", [], ["hello"]), "hello");
  const sha = await redis.scriptLoad("return {KEYS[1], ARGV[1]}");
  assert.deepEqual(await redis.evalsha(sha, ["k"], ["v"]), ["k", "v"]);
  await assert.rejects(redis.hget("n", "field"), /WRONGTYPE/);
  await assert.rejects(new Redis({ url: redis.client.baseUrl, token: "wrong:token" }).get("n"), /WRONGPASS/);
}

const http = await freePort();
await overResp("ACL SETUSER app on >token ~* &* +@all", `CONFIG SET http-port ${http}`);
const redis = new Redis({
  url: `http://127.0.0.1:${http}`,
  token: "app:token",
  responseEncoding: protocol === 3 ? "base64" : false,
  enableTelemetry: false,
  retry: false,
});
for (const check of [values, collections, several, subscribes, scriptsAndErrors]) await check(redis);
