// LangChain for JavaScript: text, a stream, a typed answer and a forced tool.

import assert from "node:assert";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const prompt = "How is the weather in Bonn? Answer briefly.";
const chat = new ChatOpenAI({ model, apiKey: "none", maxRetries: 0, maxTokens: 200, configuration: { baseURL: `${url}/v1` } });
assert((await chat.invoke(prompt)).content);
let text = "";
for await (const chunk of await chat.stream(prompt)) text += chunk.content;
assert(text);
const Forecast = z.object({ rain: z.boolean() });
for (const method of ["jsonSchema", "functionCalling"]) {
    const answer = await chat.withStructuredOutput(Forecast, { name: "forecast", method }).invoke(prompt);
    assert(typeof answer.rain === "boolean");
}
const weather = tool(({ days }) => `rain for ${days} days`, {
    name: "weather", description: "The weather.", schema: z.object({ days: z.number().int().min(1).max(9) }),
});
const [call] = (await chat.bindTools([weather], { tool_choice: "any" }).invoke(prompt)).tool_calls;
assert(call.args.days <= 9);
console.log("langchain (js): as the API has it");
