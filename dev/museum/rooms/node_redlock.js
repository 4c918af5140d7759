// node-redlock 4 or 5 with ioredis, unchanged, for node_redlock.py: it does what lines of JSON say.
//
//   {"do": "acquire", "wait": 2}    {"until": 1234.5}, by the monotonic clock; null: refused
//   {"do": "release"}               {"until": null}
//
// What the library raises, other than a refusal, is answered as {"error": "..."}.
"use strict";

const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

const [home, name, key, ttl, timeout, urls] = JSON.parse(process.argv[2]);
const load = createRequire(`${home}/`);
const Redis = load("ioredis");
const loaded = load(name);
const Redlock = loaded.default ?? loaded; // version 4 exports the class itself

const DELAY = 200; // ms between two attempts, the default of both versions
const clients = urls.map((url) => new Redis(url));
for (const client of clients) client.on("error", () => {}); // else each failure is printed
const monotonic = () => Number(process.hrtime.bigint()) / 1e9; // as Python's time.monotonic()
let lock = null;

// They count attempts, and so may ask for longer than the client wants to wait.
function within(wait, promise) {
  let isOver = false;
  const over = new Promise((done) => setTimeout(done, (wait + timeout) * 1000)).then(() => {
    isOver = true;
    return null;
  });
  promise.then((late) => isOver && late.redlock.release(late).catch(() => {}), () => {});
  return wait ? Promise.race([promise, over]) : promise;
}

const verbs = {
  async acquire({ wait }) {
    const retries = { retryCount: Math.ceil((wait * 1000) / DELAY), retryDelay: DELAY };
    const had = await within(wait, new Redlock(clients, retries).acquire([key], ttl));
    if (!had) return null;
    lock = had;
    return monotonic() + (lock.expiration - Date.now()) / 1000;
  },
  async release() {
    await new Redlock(clients).release(lock); // with their own ten retries, where there are
    return null;
  },
};

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: verb, ...how } = JSON.parse(line);
    let answer;
    try {
      answer = { until: await verbs[verb](how) };
    } catch (error) {
      // Both versions reject where no majority agreed, and do not tell "taken" from "no answer".
      const isRefusal = ["ExecutionError", "LockError"].includes(error.name);
      answer = isRefusal ? { until: null } : { error: `${error.name}: ${error.message}` };
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}

main();
