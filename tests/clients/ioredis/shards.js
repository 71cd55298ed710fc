// ioredis' cluster client while slots move and primaries change: shards.js PORT SECONDS. See ../shards.mjs.
import { Cluster } from "ioredis";
import { count, run } from "./shards.mjs";

const [port, seconds] = process.argv.slice(2).map(Number);
const client = new Cluster([{ host: "127.0.0.1", port }]);
client.on("error", () => count("error event"));
await run(client, seconds);
client.disconnect();
