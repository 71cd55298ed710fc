// node-redis with its default settings during a FAILOVER: failover.js PORT FAILOVER. Silent when all is well.
//
// Loops count up through one client, which knows the address of the first server alone. FAILOVER, a command,
// changes the roles. The client follows the servers' messages (CLIENT MAINT_NOTIFICATIONS).
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { createClient } from "redis";

const [port, failover] = process.argv.slice(2);
const LOOPS = 8, PATIENCE_MS = 20_000;
const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

function check(condition, ...text) {
  if (condition) return;
  console.error(...text);
  process.exit(1);
}

async function until(what, isSo) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!isSo()) {
    check(Date.now() < deadline, "not in time:", what, errors.length, errors[0]?.message);
    await sleep(20);
  }
}

const errors = [], counts = Array(LOOPS).fill(0);
let isOver = false;

const client = createClient({ socket: { host: "127.0.0.1", port: Number(port) } });
client.on("error", () => {}); // the connection that the server closes is told here, too
await client.connect();

async function count(number) {
  while (!isOver) {
    try {
      counts[number] = await client.incr(`count:${number}`);
    } catch (error) {
      errors.push(error);
      await sleep(1);
    }
  }
}

const loops = counts.map((_, number) => count(number));
await until("loops begin", () => counts.every((one) => one > 0));
await promisify(execFile)(failover);
const before = [...counts];
await until("loops go on at the new primary", () => counts.every((one, number) => one > before[number] + 20));
isOver = true;
await Promise.all(loops);
// The commands on their way when the roles change fail: this library repeats none that it has sent. There is
// at most one for each loop.
check(errors.length <= LOOPS, `${errors.length} errors:`, errors.slice(0, 3).map((error) => error.message));
const primary = createClient({ socket: { host: "127.0.0.2", port: Number(port) } });
await primary.connect();
for (const [number, counted] of counts.entries()) {
  const stored = Number(await primary.get(`count:${number}`));
  check(stored === counted, `${stored} increments for ${counted} replies`);
}
client.destroy();
primary.destroy();
