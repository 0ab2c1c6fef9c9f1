// LangChain for JavaScript on both of OpenAI's APIs: text, a stream, typed answers, a forced tool and its result, a
// picture.

import assert from "node:assert";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { client, model, pictureUrl, prompt, question, seenInChat, sees, url } from "./common.mjs";

const Forecast = z.object({ rain: z.boolean() });
const weather = tool(({ days }) => `rain for ${days} days`, {
    name: "weather", description: "The weather.", schema: z.object({ days: z.number().int().min(1).max(9) }),
});
for (const [surface, useResponsesApi] of [["chat completions", false], ["responses", true]]) {
    const configuration = { baseURL: `${url}/v1` };
    const options = { model, apiKey: "none", maxRetries: 0, maxTokens: 200, useResponsesApi, configuration };
    const chat = new ChatOpenAI(options);
    const tries = client("@langchain/openai", surface);
    await tries("text", async () => assert((await chat.invoke(prompt)).text));
    await tries("stream", async () => {
        let text = "";
        for await (const chunk of await chat.stream(prompt)) text += chunk.text;
        assert(text);
    });
    await tries("form", async () => {
        for (const method of ["jsonSchema", "functionCalling"]) {
            const answer = await chat.withStructuredOutput(Forecast, { name: "forecast", method }).invoke(prompt);
            assert(typeof answer.rain === "boolean");
        }
    });
    let called;
    await tries("call", async () => {
        // On responses, this client can force a tool only by name: it leaves "any" and "required" out of the request.
        called = await chat.bindTools([weather], { tool_choice: "weather", parallel_tool_calls: false }).invoke(prompt);
        assert(called.tool_calls[0].args.days <= 9);
    });
    await tries("result", async () => {
        const result = new ToolMessage({ content: "rain", tool_call_id: called.tool_calls[0].id });
        assert((await chat.invoke([new HumanMessage(prompt), called, result])).text);
    });
    if (!sees) continue;
    await tries("a picture", async () => {
        const greedy = new ChatOpenAI({ ...options, maxTokens: 12, temperature: 0 });
        const content = [{ type: "image_url", image_url: { url: pictureUrl } }, { type: "text", text: question }];
        // The answer about the same picture must be the same without this client.
        assert.equal((await greedy.invoke([new HumanMessage({ content })])).text, await seenInChat());
    });
}
