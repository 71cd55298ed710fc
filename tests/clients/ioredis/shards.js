// ioredis' cluster client while slots move and primaries change: shards.js PORT SECONDS.
//
// Prints its counts. Fails if a read has another value than the last one that was acknowledged, or one that was
// sent without a reply; and at an error that no fault explains.
import { Cluster } from "ioredis";

const [port, seconds] = process.argv.slice(2).map(Number);
const client = new Cluster([{ host: "127.0.0.1", port }]);
client.on("error", () => count("error event"));

const unexplained = /^(ERR|READONLY|WRONGTYPE|UNBLOCKED|NOAUTH|EXECABORT|CROSSSLOT)/;
const counts = {};
const count = (what) => { counts[what] = (counts[what] ?? 0) + 1; };

function fail(...text) {
  console.error(...text);
  process.exit(1);
}

// Whether a command fails, for a reason that a fault explains.
async function attempt(command) {
  try {
    return [await command()];
  } catch (error) {
    if (unexplained.test(error.message)) fail(error);
    count(error.message.split(/[\s:,]/, 1)[0]);
    await new Promise((resolve) => setTimeout(resolve, 10));
    return null;
  }
}

const end = Date.now() + seconds * 1000;
async function work(worker) {
  const last = {}, unknown = new Set();
  for (let value = 1; Date.now() < end; value++) {
    const key = value % 20; // so values differ between keys
    const name = `key:${worker}:${key}`;
    const found = await attempt(() => client.get(name));
    if (found === null) continue;
    if (found[0] !== (last[key] ?? null) && !unknown.has(found[0])) fail(name, found[0], last[key]);
    last[key] = found[0];
    unknown.add(String(value));
    if (await attempt(() => client.set(name, String(value))) === null) continue;
    unknown.delete(String(value));
    last[key] = String(value);
    count("done");
  }
}
await Promise.all([0, 1, 2, 3].map(work));
console.log(counts);
if (!counts.done) fail("nothing was done");
client.disconnect();
