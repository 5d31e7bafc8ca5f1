// Uses the types that openapi-typescript has made, with openapi-fetch.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/schema.js";

const client = createClient<paths>({ baseUrl: process.argv[2] ?? "" });

// Only the prefix and a due time are required: what has a default may be left out.
const body: components["schemas"]["NewTimer"] = { prefix: "log", id: "fetch", delay: "24h", retry: { max_attempts: 3 } };
const made = await client.POST("/v1/timers", { body: { ...body, if_exists: "replace" } });
assert.equal(made.data?.status, "scheduled");
assert.equal(made.data?.retry?.max_attempts, 3);

const taken = await client.POST("/v1/timers", { body });
assert.equal(taken.error?.type, "urn:timers:problem:already-exists");

const query = { prefix: "lo*", status: ["scheduled", "failed"], due_before: "48h", limit: 10 } as const;
const page = await client.GET("/v1/timers", { params: { query: { ...query, status: [...query.status] } } });
assert.ok(page.data?.items.some((timer) => timer.id === "fetch"));

const path = { prefix: "log", id: "fetch" };
const changed = await client.PATCH("/v1/timers/{prefix}/{id}", { params: { path }, body: { delay: 172800 } });
assert.equal(changed.data?.version, (made.data?.version ?? 0) + 1);
const gone = await client.DELETE("/v1/timers/{prefix}/{id}", { params: { path, query: { purge: true } } });
assert.equal(gone.data?.status, "cancelled");
console.log("openapi-typescript: compiled and used");
