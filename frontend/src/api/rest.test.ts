import { expect, test } from "vitest";

import { problemFrom } from "./rest";

test("a problem names the fields that the API refused", () => {
  const body = {
    type: "about:blank",
    title: "Bad Request",
    status: 400,
    detail: "The request is not valid.",
    errors: [
      { field: "values.decoder_kv_blocks_ttl", message: "must be 0 or at least 10 seconds" },
      { field: "scope", message: "names no engine" },
    ],
  };
  expect(problemFrom(400, body)).toEqual({
    title: "Bad Request",
    detail: "The request is not valid.",
    fields: { decoder_kv_blocks_ttl: "must be 0 or at least 10 seconds", scope: "names no engine" },
  });
});

test("an answer that isn't the API's still says what happened", () => {
  expect(problemFrom(502, null)).toMatchObject({ title: "HTTP 502", fields: {} });
});
