import type { TSchema } from "@sinclair/typebox";

export type Json = Record<string, unknown>;

/** The schemas of one document. */
export interface Schemas {
  /** The schema as the document writes it where it is used: a reference if it has a title, else the schema itself. */
  refer(schema: TSchema): Json;
  /** Every schema with a title that was referred to. */
  components: Record<string, Json>;
}

/**
 * Writes the contract's own schemas as JSON Schema 2020-12. A choice of words becomes an enum, and a choice between a type
 * and null becomes a list of types: the same values, in the form that readers and code generators expect. `documented`
 * holds constraints that the domain checks and the schema's validator does not.
 */
export function createSchemas(): Schemas {
  const components: Record<string, Json> = {};

  function refer({ title, default: fallback, ...schema }: TSchema): Json {
    const own = fallback === undefined ? {} : { default: fallback };
    const written = write(schema as TSchema);
    if (title === undefined) return { ...written, ...own };
    components[title] ??= written;
    if (JSON.stringify(components[title]) !== JSON.stringify(written)) {
      throw new Error(`two schemas have the title ${title}`);
    }
    return { $ref: `#/components/schemas/${title}`, ...own };
  }

  function write({ documented, properties, items, anyOf, ...rest }: TSchema): Json {
    return {
      ...rest,
      ...(anyOf === undefined ? {} : writeChoice(anyOf)),
      ...documented,
      ...(items === undefined ? {} : { items: refer(items) }),
      ...(properties === undefined ? {} : { properties: writeFields(properties) }),
    };
  }

  function writeFields(properties: Record<string, TSchema>): Json {
    return Object.fromEntries(Object.entries(properties).map(([name, schema]) => [name, refer(schema)]));
  }

  function writeChoice(choices: TSchema[]): Json {
    if (choices.every((choice) => typeof choice.const === "string")) {
      return { type: "string", enum: choices.map((choice) => choice.const) };
    }
    const written = choices.map(refer);
    const [first, second] = written;
    if (written.length === 2 && first?.type !== undefined && second?.type === "null") {
      return { ...first, type: [first.type, "null"] };
    }
    return { anyOf: written };
  }

  return { refer, components };
}
