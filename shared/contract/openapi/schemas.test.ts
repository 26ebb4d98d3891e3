import { expect, test } from "bun:test";
import { Type } from "@sinclair/typebox";
import { wordOf } from "../validator.ts";
import { createSchemas } from "./schemas.ts";

const written = (schema: Parameters<ReturnType<typeof createSchemas>["refer"]>[0]) =>
  JSON.parse(JSON.stringify(createSchemas().refer(schema)));

test("a schema with a title is written once and referred to by it, with the default of each use", () => {
  const { refer, components } = createSchemas();
  const name = Type.String({ title: "Name", maxLength: 9 });
  const person = refer(Type.Object({ name, nick: Type.Optional({ ...name, default: "Bo" }) }));
  expect(person).toMatchObject({
    required: ["name"],
    properties: {
      name: { $ref: "#/components/schemas/Name" },
      nick: { $ref: "#/components/schemas/Name", default: "Bo" },
    },
  });
  expect(components).toMatchObject({ Name: { type: "string", maxLength: 9 } });
  expect(() => refer(Type.String({ title: "Name" }))).toThrow("Name");
});

test("a choice of words is an enum, and one between something and null a list of types", () => {
  expect(written(wordOf(["a", "b"], "Either."))).toEqual({
    type: "string",
    enum: ["a", "b"],
    description: "Either.",
  });
  expect(written(Type.Union([Type.Integer({ minimum: 0 }), Type.Null()]))).toEqual({
    type: ["integer", "null"],
    minimum: 0,
  });
  expect(written(Type.Union([Type.String({ title: "Name" }), Type.Null()]))).toEqual({
    anyOf: [{ $ref: "#/components/schemas/Name" }, { type: "null" }],
  });
});

test("constraints that the domain checks are written beside those of the validator", () => {
  expect(written(Type.String({ documented: { maxLength: 80 } }))).toEqual({ type: "string", maxLength: 80 });
});
