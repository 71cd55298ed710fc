// node-redis' cluster client while slots move and primaries change: shards.js PORT SECONDS. See ../shards.mjs.
import { createCluster } from "redis";
import { count, run } from "./shards.mjs";

const [port, seconds] = process.argv.slice(2).map(Number);
const client = createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
client.on("error", () => count("error event"));
await client.connect();
await run(client, seconds);
client.destroy();
