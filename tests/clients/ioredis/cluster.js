// ioredis' cluster client: cluster.js PORT PROTOCOL. Silent when all is well.
//
// PORT is that of a node of a cluster that owns all slots.
import { Cluster } from "ioredis";

const [port, protocol] = process.argv.slice(2).map(Number);

function check(condition, ...text) {
  if (condition) return;
  console.error(...text);
  process.exit(1);
}

const client = new Cluster([{ host: "127.0.0.1", port }], { redisOptions: { protocol } });
client.on("error", (error) => { console.error(error); process.exit(1); });
const keys = Array.from({ length: 200 }, (_, number) => `key:${number}`);
for (const key of keys) check(await client.set(key, key) === "OK", "SET", key);
const values = await Promise.all(keys.map((key) => client.get(key)));
check(values.every((value, at) => value === keys[at]), "GET", values);
check(await client.eval("return redis.call('get', KEYS[1])", 1, "key:7") === "key:7", "a script");
const [, [, value]] = await client.multi().set("{tag}1", "a").get("{tag}1").exec();
check(value === "a", "a transaction", value);
const sizes = await Promise.all(client.nodes("master").map((node) => node.dbsize()));
check(sizes.reduce((sum, size) => sum + size, 0) === keys.length + 1, "DBSIZE", sizes);
await Promise.all(client.nodes("master").map((node) => node.flushall()));
await client.quit();
