// A client of node-redlock 4 or 5 with ioredis, unchanged: what it is told, what it answers and
// what it notes stands in museum/client_program.py and museum/history.py. Arguments: the folder
// with node_modules, the package's name there, and what a client is told first.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

const [home, name, first] = process.argv.slice(2);
const told = JSON.parse(first);
const load = createRequire(`${home}/`);
const Redis = load("ioredis");
const loaded = load(name);
const Redlock = loaded.default ?? loaded; // version 4 exports the class itself

const TTL = Math.round(told.ttl * 1000);
const DELAY = 200; // ms between two attempts, the default of both versions
const WORK_WAIT = 60;
const clients = told.urls.map((url) => new Redis(url));
for (const client of clients) client.on("error", () => {}); // else each failure is printed
const redlockFor = (wait) =>
  new Redlock(clients, { retryCount: Math.ceil((wait * 1000) / DELAY), retryDelay: DELAY });
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
let lock = null;
let until = 0; // by the monotonic clock, when what was told of `lock` ends
let seen = 0;

// -- the history: CLOCK_MONOTONIC in seconds, as Python's time.monotonic() ------------------------

const file = fs.openSync(told.history, "a", 0o600);
const monotonic = () => Number(process.hrtime.bigint()) / 1e9;

function note(what, more = {}) {
  fs.writeSync(file, `${JSON.stringify({ at: monotonic(), who: told.who, what, ...more })}\n`);
}

// -- what the lock guards, as museum/store.py -----------------------------------------------------

function read() {
  try {
    return Number(fs.readFileSync(told.store, "ascii"));
  } catch (error) {
    if (error.code === "ENOENT") return 0;
    throw error;
  }
}

function write(value) {
  const made = `${told.store}.${process.pid}`;
  fs.writeFileSync(made, String(value), "ascii");
  fs.renameSync(made, told.store);
  return true;
}

// -- the lock -------------------------------------------------------------------------------------

const refusal = (error) => ["ExecutionError", "LockError"].includes(error.name);

// Both versions reject where no majority agreed, and do not tell "taken" from "no answer".
async function agreed(promise) {
  try {
    return await promise;
  } catch (error) {
    if (refusal(error)) return null;
    note("fails", { why: `${error.name}: ${error.message}` });
    throw error;
  }
}

// They count attempts, and so may ask for longer than the client wants to wait.
async function within(wait, promise) {
  let isOver = false;
  const over = sleep(wait + told.timeout).then(() => {
    isOver = true;
    return null;
  });
  promise.then((late) => isOver && late.redlock.release(late).catch(() => {}), () => {});
  return wait ? Promise.race([promise, over]) : promise;
}

function answer(had, otherwise) {
  if (had) {
    lock = had; // `expiration` is a time of the wall clock
    until = monotonic() + (lock.expiration - Date.now()) / 1000;
    note("holds", { until, fence: null });
  } else {
    until = 0;
    note(otherwise);
  }
  return { held: Boolean(had) };
}

const verbs = {
  async acquire({ wait }) {
    note("asks");
    const had = within(wait, redlockFor(wait).acquire([told.name], TTL));
    return answer(await agreed(had), "refused");
  },
  async extend() {
    return answer(await agreed(lock.extend(TTL)), "lost");
  },
  async believe() {
    return { held: monotonic() < until };
  },
  async read() {
    seen = read();
    note("reads", { value: seen });
    return { value: seen };
  },
  async look() {
    return { value: read() };
  },
  async write() {
    const done = write(seen + 1);
    note("writes", { value: seen + 1, done });
    return { done };
  },
  async release() {
    note("releases");
    await agreed(new Redlock(clients).release(lock)); // with their own ten retries, where there are
    note("released");
    return {};
  },
  async halt() {
    return {}; // other people's code has no points
  },
  async work({ times, think = 0 }) {
    let done = 0;
    while (done < times && (await verbs.acquire({ wait: WORK_WAIT })).held) {
      await verbs.read();
      await sleep(think);
      done += Number((await verbs.write()).done);
      await verbs.release();
    }
    return { done };
  },
};

async function main() {
  const say = (answer) => console.log(JSON.stringify(answer));
  say({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: verb, ...how } = JSON.parse(line);
    try {
      say(await verbs[verb](how));
    } catch (error) {
      say({ error: `${error.name}: ${error.message}` });
    }
  }
  process.exit(0);
}

main();
