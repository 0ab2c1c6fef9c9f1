// The AI SDK with its provider for OpenAI, which speaks responses: text, a stream, a typed answer, and a tool whose
// result goes back by a reference to the stored call.

import assert from "node:assert";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const prompt = "How is the weather in Bonn? Answer briefly.";
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const options = { model: provider(name), prompt, maxOutputTokens: 200, maxRetries: 0 };
const said = await generateText(options);
assert(said.text && said.usage.outputTokens > 0);
assert(await streamText(options).text);
const { object } = await generateObject({ ...options, schema: z.object({ rain: z.boolean() }) });
assert(typeof object.rain === "boolean");
const weather = tool({
    description: "The weather.", inputSchema: z.object({ days: z.number().int().min(1).max(9) }),
    execute: async ({ days }) => `rain for ${days} days`,
});
const calling = { tools: { weather }, providerOptions: { openai: { parallelToolCalls: false } } };
const force = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
for (const store of [true, false]) {
    calling.providerOptions.openai.store = store;
    const steps = await generateText({ ...options, ...calling, prepareStep: force, stopWhen: stepCountIs(2) });
    assert(steps.steps[0].toolCalls[0].input.days <= 9 && steps.steps.length === 2 && steps.text);
}
let calls = 0;
const streamed = streamText({ ...options, ...calling, prepareStep: force, stopWhen: stepCountIs(1) });
for await (const part of streamed.fullStream) {
    assert(part.type !== "error", part.error);
    calls += part.type === "tool-call";
}
assert(calls === 1);
console.log("ai (responses): as the API has it");
