// OpenAI's client for JavaScript: a typed answer by Zod, and a strict tool beside it.

import assert from "node:assert";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "How is the weather in Bonn? Answer briefly." }];
const Forecast = z.object({ rain: z.boolean(), days: z.number().int().min(1).max(9) });
const response_format = zodResponseFormat(Forecast, "forecast");
const typed = await client.chat.completions.parse({ model, messages, response_format, max_tokens: 200 });
assert(typed.choices[0].message.parsed.days <= 9);
const tools = [zodFunction({ name: "weather", parameters: z.object({ days: z.number().int().min(1).max(9) }) })];
const called = await client.chat.completions.parse({ model, messages, tools, tool_choice: "required", max_tokens: 200 });
assert(called.choices[0].message.tool_calls[0].function.parsed_arguments.days <= 9);
let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true, max_tokens: 30 })) {
    text += chunk.choices[0]?.delta?.content ?? "";
}
assert(text);
console.log("openai (js): as the API has it");
