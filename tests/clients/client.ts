// A client of TypeScript: makes a task that an event wakes, publishes the event, and approves what the agent asks.
// Arguments: where the service is, and a token of its admin.

import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { argv: string[] };

const PATIENCE_MS = 60_000;
const LOOK_MS = 50;

const [baseUrl = "", token = ""] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${token}` } });

/** The answer, which must be no problem. */
function answered<T>({ data, error }: { data?: T; error?: unknown }): T {
    if (data === undefined) throw new Error(JSON.stringify(error));
    return data;
}

/** Looks until there is something to see. */
async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
    const end = Date.now() + PATIENCE_MS;
    while (Date.now() < end) {
        const seen = await look();
        if (seen !== undefined) return seen;
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    throw new Error("it took too long");
}

const trigger: components["schemas"]["Trigger"] = { type: "event", source: "shop", event_type: "order" };
const made = await client.POST("/v1/tasks", {
    body: { tenant_id: "ann", name: "Clock", trigger, action: { instruction: "What time is it?" }, output: null },
});
const task = answered(made);
if (task.trigger.type !== "event" || task.trigger.source !== "shop") throw new Error(JSON.stringify(task));

const event: components["schemas"]["NewEvent"] = { tenant_id: "ann", source: "shop", type: "order", data: { total: 7 } };
const { ids } = answered(await client.POST("/v1/events", { body: [event] }));

const asked = await until(async () => {
    const query = { task_id: task.id, status: "pending" as const };
    return answered(await client.GET("/v1/approvals", { params: { query } })).items[0];
});
const decided = answered(
    await client.POST("/v1/approvals/{id}/decision", {
        params: { path: { id: asked.id } },
        body: { decision: "approve", digest: asked.digest, comment: "go on" },
    }),
);
if (decided.status !== "approved") throw new Error(JSON.stringify(decided));

const run = await until(async () => {
    const run = answered(await client.GET("/v1/runs/{id}", { params: { path: { id: asked.run_id } } }));
    return run.state === "succeeded" ? run : undefined;
});
console.log(JSON.stringify({ events: ids.length, event_ids: run.event_ids.length, output: run.output }));
