// node-redis' cluster client: cluster.js PORT PROTOCOL. Silent when all is well.
//
// PORT is that of a node of a cluster that owns all slots.
import { createCluster } from "redis";

const [port, protocol] = process.argv.slice(2).map(Number);

function check(condition, ...text) {
  if (condition) return;
  console.error(...text);
  process.exit(1);
}

const client = createCluster({
  rootNodes: [{ url: `redis://127.0.0.1:${port}` }], defaults: { RESP: protocol },
});
client.on("error", (error) => { console.error(error); process.exit(1); });
await client.connect();
const keys = Array.from({ length: 200 }, (_, number) => `key:${number}`);
for (const key of keys) check(await client.set(key, key) === "OK", "SET", key);
const values = await Promise.all(keys.map((key) => client.get(key)));
check(values.every((value, at) => value === keys[at]), "GET", values);
const script = { keys: ["key:7"] };
check(await client.eval("return redis.call('get', KEYS[1])", script) === "key:7", "a script");
const [, value] = await client.multi().set("{tag}1", "a").get("{tag}1").exec();
check(value === "a", "a transaction", value);
const heard = new Promise((resolve) => { client.sSubscribe("{tag}channel", resolve).then(() =>
  client.sPublish("{tag}channel", "hello")); });
check(await heard === "hello", "a message");
for (const key of [...keys, "{tag}1"]) await client.del(key);
client.destroy();
