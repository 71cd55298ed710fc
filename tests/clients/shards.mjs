// What a cluster client does while slots move and primaries change: it reads and writes keys, and prints its
// counts. Fails if a read has another value than the last one that was acknowledged, or one that was sent
// without a reply; and at an error that no fault explains.

const unexplained = /^(ERR|READONLY|WRONGTYPE|UNBLOCKED|NOAUTH|EXECABORT|CROSSSLOT)/;
const counts = {};
export const count = (what) => { counts[what] = (counts[what] ?? 0) + 1; };

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

async function work(client, worker, end) {
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

// Lets four workers of a client read and write for so many seconds.
export async function run(client, seconds) {
  const end = Date.now() + seconds * 1000;
  await Promise.all([0, 1, 2, 3].map((worker) => work(client, worker, end)));
  console.log(counts);
  if (!counts.done) fail("nothing was done");
}
