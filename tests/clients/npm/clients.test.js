// OpenAI's, Anthropic's and Vercel's libraries for JavaScript. URL and KEY in the environment say where the server is.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { URL: url, KEY: apiKey } = process.env;
const model = "small";
const question = "What is the capital of Norway?";
const answer = "The capital of Norway is Oslo.";
const weather = "What is the weather in Oslo?";
const sunny = "It is sunny and 18 degrees in Oslo.";
const result = JSON.stringify({ temperature: 18, condition: "sunny" });
const city = z.object({ city: z.string() });
const report = z.strictObject({ city: z.enum(["Oslo", "Bergen"]), degrees: z.int().min(-40).max(50) });
const user = (content) => ({ role: "user", content });

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });

test("openai: chat, whole and streamed", async () => {
  const ask = { model, messages: [user(question)], temperature: 0 };
  assert.equal((await openai.chat.completions.create(ask)).choices[0].message.content, answer);
  let text = "";
  for await (const chunk of await openai.chat.completions.create({ ...ask, stream: true })) {
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.equal(text, answer);
});

test("openai: parsed chat and response", async () => {
  const ask = { model, messages: [user(weather)], response_format: zodResponseFormat(report, "report") };
  report.parse((await openai.chat.completions.parse(ask)).choices[0].message.parsed);
  const form = { model, input: weather, text: { format: zodTextFormat(report, "report") } };
  report.parse((await openai.responses.parse(form)).output_parsed);
});

test("openai: the loop of tools", async () => {
  const get_weather = { name: "get_weather", description: "Get the weather in a city.", function: () => result, parse: JSON.parse };
  get_weather.parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const ask = { model, messages: [user(weather)], temperature: 0, tools: [{ type: "function", function: get_weather }] };
  assert.equal(await openai.chat.completions.runTools(ask).finalContent(), sunny);
  assert.equal(await openai.chat.completions.runTools({ ...ask, stream: true }).finalContent(), sunny);
});

test("anthropic: messages, whole and streamed", async () => {
  const ask = { model, max_tokens: 64, messages: [user(question)], temperature: 0 };
  assert.equal((await anthropic.messages.create(ask)).content[0].text, answer);
  assert.equal(await anthropic.messages.stream(ask).finalText(), answer);
});

test("anthropic: the loop of tools", async () => {
  const get_weather = { name: "get_weather", description: "Get the weather in a city.", inputSchema: city, run: () => result };
  const ask = { model, max_tokens: 256, messages: [user(weather)], temperature: 0, tools: [betaZodTool(get_weather)] };
  assert.equal((await anthropic.beta.messages.toolRunner(ask)).content[0].text, sunny);
});

const settings = { baseURL: `${url}/v1`, apiKey };
const providers = {
  "openai-compatible": createOpenAICompatible({ ...settings, name: "apple", supportsStructuredOutputs: true }).chatModel(model),
  "openai, chat": createOpenAI(settings).chat(model),
  "openai, responses": createOpenAI(settings).responses(model),
};
const common = { temperature: 0, maxOutputTokens: 256, maxRetries: 0 };

for (const [name, model] of Object.entries(providers)) {
  test(`ai, ${name}: whole and streamed`, async () => {
    assert.equal((await generateText({ ...common, model, prompt: question })).text, answer);
    assert.equal(await streamText({ ...common, model, prompt: question }).text, answer);
  });

  test(`ai, ${name}: an object`, async () => {
    const reply = await generateText({ ...common, model, prompt: weather, output: Output.object({ schema: report }) });
    report.parse(reply.output);
  });

  test(`ai, ${name}: the loop of tools`, async () => {
    const execute = () => ({ temperature: 18, condition: "sunny" });
    const tools = { get_weather: tool({ description: "Get the weather in a city.", inputSchema: city, execute }) };
    const ask = { ...common, model, tools, prompt: weather, stopWhen: stepCountIs(3) };
    assert.equal((await generateText(ask)).text, sunny);
    assert.equal(await streamText(ask).text, sunny);
  });
}
