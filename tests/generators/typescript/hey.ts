// Uses the client that @hey-api/openapi-ts has made.
import assert from "node:assert/strict";
import { client } from "./generated/hey/client.gen.js";
import { actOnTimers, cancelTimer, createTimer, createTimers, getTimer, listTimers } from "./generated/hey/index.js";

client.setConfig({ baseUrl: (process.argv[2] ?? "") as `${string}://${string}` });

const made = await createTimer({ body: { prefix: "log", id: "hey", delay: "24h", if_exists: "replace" } });
assert.equal(made.data?.status, "scheduled");
const taken = await createTimer({ body: { prefix: "log", id: "hey", delay: "24h" } });
assert.equal(taken.error?.type, "urn:timers:problem:already-exists");

const batch = await createTimers({ body: { timers: [{ prefix: "log", id: "hey-two", delay: 86400, tags: ["hey"], if_exists: "replace" }] } });
assert.ok([200, 201].includes(batch.data?.results[0]?.status ?? 0));
const page = await listTimers({ query: { prefix: "lo*", status: ["scheduled"], tag: ["hey"], due_after: "-1h" } });
assert.deepEqual(page.data?.items.map((timer) => timer.id), ["hey-two"]);

const path = { prefix: "log", id: "hey" };
assert.equal((await getTimer({ path })).data?.id, "hey");
assert.equal((await cancelTimer({ path })).data?.status, "cancelled");
const purged = await actOnTimers({ body: { action: "purge", filter: { prefix: "log", tag: "hey" } } });
assert.equal(purged.data?.done, 1);
console.log("@hey-api/openapi-ts: compiled and used");
