/** A schema as TypeBox makes it: the part of JSON Schema that the contract uses. */
export interface Schema {
  type?: string;
  title?: string;
  description?: string;
  const?: unknown;
  enum?: readonly unknown[];
  anyOf?: readonly Schema[];
  items?: Schema;
  properties?: Readonly<Record<string, Schema>>;
  required?: readonly string[];
}

/** Writes schemas as TypeScript. Schemas that have a title become types of that name. */
export interface TypeWriter {
  /** The text of the schema's type. Throws for a schema that it cannot write. */
  typeOf(schema: Schema): string;
  /** The declarations of all types that were named so far. */
  readonly declarations: string;
}

export function createTypeWriter(): TypeWriter {
  const declared = new Map<string, string>();

  function typeOf(schema: Schema): string {
    const { title, description } = schema;
    const text = bodyOf(schema);
    if (title === undefined) return text;
    const declaration = `${comment(description)}export type ${title} = ${text};\n`;
    const known = declared.get(title);
    if (known === undefined) declared.set(title, declaration);
    // Two schemas may share a title and differ.
    return known === undefined || known === declaration ? title : text;
  }

  function bodyOf(schema: Schema): string {
    if (schema.const !== undefined) return JSON.stringify(schema.const);
    if (schema.enum !== undefined) return union(schema.enum.map((value) => JSON.stringify(value)));
    if (schema.anyOf !== undefined) return union(schema.anyOf.map(typeOf));
    if (schema.type === "object") return objectOf(schema);
    if (schema.type === "array" && schema.items !== undefined) return `Array<${typeOf(schema.items)}>`;
    const plain = PLAIN[schema.type ?? ""];
    if (plain !== undefined) return plain;
    throw new Error(`no type is known for the schema ${JSON.stringify(schema)}`);
  }

  function objectOf({ properties = {}, required = [] }: Schema): string {
    const members = Object.entries(properties).map(([name, schema]) => {
      const optional = required.includes(name) ? "" : "?";
      return `${comment(schema.description)}${JSON.stringify(name)}${optional}: ${typeOf(schema)};\n`;
    });
    return members.length === 0 ? "{}" : `{\n${members.join("")}}`;
  }

  return {
    typeOf,
    get declarations() {
      return [...declared.values()].join("");
    },
  };
}

const PLAIN: Record<string, string> = {
  string: "string",
  boolean: "boolean",
  null: "null",
  integer: "number",
  number: "number",
};

const union = (types: readonly string[]) => `(${[...new Set(types)].join(" | ")})`;

const comment = (text: string | undefined) =>
  text === undefined ? "" : `/** ${text.replaceAll("*/", "* /")} */\n`;
