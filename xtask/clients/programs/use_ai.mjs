// The AI SDK with three providers: OpenAI's (responses), Anthropic's (messages), and the provider for compatible
// servers (chat completions). It tries text, a stream, a typed answer, a forced tool, a tool whose result is sent back,
// and a picture.

import assert from "node:assert";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { client, model, picture, prompt, question, seenInChat, sees, url } from "./common.mjs";

const baseURL = `${url}/v1`;
const apiKey = "none";
const weather = tool({
    description: "The weather.", inputSchema: z.object({ days: z.number().int().min(1).max(9) }),
    execute: async ({ days }) => `rain for ${days} days`,
});
const tools = { weather };

/** Tries a provider. `options` leave one call to each step, and `more` are further ways for a result to go back. */
async function use(tries, provider, options, more = []) {
    const asked = { model: provider(model), prompt, maxOutputTokens: 200, maxRetries: 0 };
    await tries("text", async () => {
        const said = await generateText(asked);
        assert(said.text && said.usage.outputTokens > 0);
    });
    await tries("stream", async () => assert(await streamText(asked).text));
    await tries("form", async () => {
        const { object } = await generateObject({ ...asked, schema: z.object({ rain: z.boolean() }) });
        assert(typeof object.rain === "boolean");
    });
    const force = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
    await tries("call", async () => {
        const { toolCalls } = await generateText({ ...asked, tools, toolChoice: "required", providerOptions: options });
        assert(toolCalls[0].input.days <= 9);
    });
    await tries("streamed call", async () => {
        let calls = 0;
        const calling = { tools, providerOptions: options, prepareStep: force, stopWhen: stepCountIs(1) };
        for await (const part of streamText({ ...asked, ...calling }).fullStream) {
            assert(part.type !== "error", part.error);
            calls += part.type === "tool-call";
        }
        assert(calls >= 1);
    });
    await tries("result", async () => {
        for (const providerOptions of [options, ...more]) {
            const calling = { tools, providerOptions, prepareStep: force, stopWhen: stepCountIs(2) };
            const { steps, text } = await generateText({ ...asked, ...calling });
            assert(steps[0].toolCalls[0].input.days <= 9 && steps.length === 2 && text);
        }
    });
    if (!sees) return;
    await tries("a picture", async () => {
        const content = [{ type: "image", image: picture, mediaType: "image/png" }, { type: "text", text: question }];
        const messages = [{ role: "user", content }];
        const greedy = { model: provider(model), messages, maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
        // The answer about the same picture must be the same without this client.
        assert.equal((await generateText(greedy)).text, await seenInChat());
    });
}

const compatible = createOpenAICompatible({ name: "served", baseURL, apiKey, supportsStructuredOutputs: true });
await use(client("@ai-sdk/openai-compatible", "chat completions"), compatible, {});
// The result is sent back with the call itself, or with a reference to the stored call.
const [unstored, stored] = [false, true].map((store) => ({ openai: { parallelToolCalls: false, store } }));
await use(client("@ai-sdk/openai", "responses"), createOpenAI({ baseURL, apiKey }), stored, [unstored]);
const one = { anthropic: { disableParallelToolUse: true } };
await use(client("@ai-sdk/anthropic", "messages"), createAnthropic({ baseURL, apiKey }), one);
