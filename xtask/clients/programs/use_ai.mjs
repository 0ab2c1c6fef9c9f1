// The AI SDK with its provider for compatible servers: text, a typed answer and a forced tool.

import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const prompt = "How is the weather in Bonn? Answer briefly.";
const provider = createOpenAICompatible({ name: "served", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true });
const options = { model: provider(name), prompt, maxOutputTokens: 200, maxRetries: 0 };
assert((await generateText(options)).text);
assert(await streamText(options).text);
const { object } = await generateObject({ ...options, schema: z.object({ rain: z.boolean() }) });
assert(typeof object.rain === "boolean");
const weather = tool({ description: "The weather.", inputSchema: z.object({ days: z.number().int().min(1).max(9) }) });
const { toolCalls } = await generateText({ ...options, tools: { weather }, toolChoice: "required" });
assert(toolCalls[0].input.days <= 9);
console.log("ai: as the API has it");
