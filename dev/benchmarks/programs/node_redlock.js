// node-redlock by ioredis: all nodes at once. Spoken to as conversation.py says; it has no crowds.
"use strict";
const fs = require("node:fs");
const { createRequire } = require("node:module");
const path = require("node:path");
const readline = require("node:readline");

const told = JSON.parse(process.argv[2]);
const from = createRequire(path.join(told.folder, "package.json"));
const Redis = from("ioredis");
const library = from(told.package);
const Redlock = library.default || library; // 5 and 4
const versionOf = (name) => {
  const file = path.join(told.folder, "node_modules", name, "package.json");
  return JSON.parse(fs.readFileSync(file)).version;
};

// ioredis has no timeout of its own: with one node hung, version 4 would wait for ever.
const options = told.timeout ? { commandTimeout: told.timeout * 1000 } : {};
const clients = told.urls.map((url) => new Redis(url, options).on("error", () => {}));
const locks = new Redlock(clients, { retryCount: 0 }); // one attempt
locks.on("error", () => {});
locks.on("clientError", () => {});
const now = () => process.hrtime.bigint();

const median = (values) => {
  if (!values.length) return null;
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

// Both versions reject where no majority agreed, and do not tell "taken" from "no answer".
async function agreed(promise) {
  try {
    return (await promise) ?? true;
  } catch (error) {
    if (["ExecutionError", "LockError"].includes(error.name)) return false;
    throw error;
  }
}

async function block(asked) {
  const acquire = [];
  const pair = [];
  let failed = 0;
  let error = "";
  const worked = process.cpuUsage();
  const start = now();
  const deadline = start + BigInt(Math.round(asked.seconds * 1e9));
  const task = async (name) => {
    for (let round = 0; round < Math.floor(asked.pairs / asked.tasks); round++) {
      try {
        const began = now();
        const lock = await locks.acquire([name], told.ttl * 1000);
        const had = now();
        await locks.release(lock);
        acquire.push(Number(had - began) / 1000);
        pair.push(Number(now() - began) / 1000);
      } catch (reason) {
        failed += 1;
        error = error || String(reason).slice(0, 200);
      }
      if (now() > deadline) return;
    }
  };
  await Promise.all(Array.from({ length: asked.tasks }, (_, i) => task(`${asked.name}:${i}`)));
  const { user, system } = process.cpuUsage(worked);
  return {
    acquire: median(acquire),
    pair: median(pair),
    seconds: Number(now() - start) / 1e9,
    processor: (user + system) / 1e6,
    pairs: pair.length,
    failed,
    error,
    samples: pair.map((each) => Math.round(each * 10) / 10),
  };
}

let held = null;
const verbs = {
  block,
  async acquire({ key, ttl }) {
    const had = await agreed(locks.acquire([key], ttl * 1000));
    held = had || held;
    return Boolean(had);
  },
  async extend({ ttl }) {
    const kept = await agreed(held.extend(ttl * 1000));
    held = kept || held; // version 5 makes a new object
    return Boolean(kept);
  },
  async release() {
    return Boolean(await agreed(locks.release(held)));
  },
};

async function main() {
  const say = (answer) => console.log(JSON.stringify(answer));
  const ready = `${versionOf(told.package)}, ioredis ${versionOf("ioredis")}`;
  say({ ready, styles: ["promises"] });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    try {
      say(await verbs[asked.do](asked));
    } catch (error) {
      say({ error: `${error.name}: ${error.message}` });
    }
  }
  process.exit(0);
}

main();
