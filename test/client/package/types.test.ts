import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeContractTypes } from "../../../scripts/client/contract-types.ts";
import { createTypeWriter, type Schema } from "../../../scripts/client/type-writer.ts";
import { CHECKOUT } from "../../support/service-process.ts";

/** A busy machine takes minutes to check the types. */
setDefaultTimeout(300_000);

/** A program that compiles if the module has the contract's types. The complaint of tsc names operations that differ. */
const comparisonWith = (module: string) => `
import type * as contract from "${CHECKOUT}/shared/contract/operations/all.ts";
import type { EventView } from "${CHECKOUT}/shared/contract/event.ts";
import type { ListView } from "${CHECKOUT}/shared/contract/list.ts";
import type { EntryError, ErrorCode } from "${CHECKOUT}/shared/domain/errors.ts";
import type { ApiVersion } from "${CHECKOUT}/shared/domain/version.ts";
import type * as packed from "./${module}";

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
type Id = contract.OperationId;
type Pairs = {
  [Name in Id]: [
    Same<contract.QueryOf<Name>, packed.QueryOf<Name>>,
    Same<contract.BodyOf<Name>, packed.BodyOf<Name>>,
    Same<contract.ResponseOf<Name>, packed.ResponseOf<Name>>,
  ] extends [true, true, true] ? never : Name;
};
export const differing: Pairs[Id] = null as never;
type Others = [
  Same<Id, packed.OperationId>,
  Same<EventView, packed.EventView>,
  Same<ListView<1>, packed.ListView<1>>,
  Same<EntryError, packed.EntryError>,
  Same<ErrorCode, packed.ErrorCode>,
  Same<ApiVersion, packed.ApiVersion>,
];
export const others: Others = [true, true, true, true, true, true];
export const none: never = differing;
`;

/** Answers the complaints of tsc about each comparison, by the rules of the project. */
function compare(types: Record<string, string>): Record<string, string[]> {
  const folder = mkdtempSync(join(tmpdir(), "packed-types-"));
  try {
    for (const [name, text] of Object.entries(types)) {
      writeFileSync(join(folder, `${name}.ts`), text);
      writeFileSync(join(folder, `with-${name}.ts`), comparisonWith(`${name}.ts`));
    }
    const settings = {
      extends: join(CHECKOUT, "tsconfig.json"),
      compilerOptions: { types: [join(CHECKOUT, "node_modules/bun-types")] },
      include: ["*.ts"],
    };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(settings));
    const tsc = join(CHECKOUT, "node_modules/typescript/bin/tsc");
    const said = Bun.spawnSync(["node", tsc, "-p", folder], { cwd: folder }).stdout.toString().split("\n");
    const complaints = said.filter((line) => line !== "" && !line.startsWith(" "));
    return Object.fromEntries(
      Object.keys(types).map((name) => [
        name,
        complaints.filter((line) => line.startsWith(`with-${name}.ts`)),
      ]),
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test("the types of the package are those of the contract, and one that differs is named", () => {
  const packed = writeContractTypes();
  const altered = packed.replace(/explainJob: .*/, "explainJob: { query: {}; body: never; response: {} };");
  const complaints = compare({ packed, altered });
  expect(complaints.packed).toEqual([]);
  expect(complaints.altered).toEqual([expect.stringContaining(`"explainJob"`)]);
});

test("what the types cannot say is not packed", () => {
  const writer = createTypeWriter();
  for (const schema of [{}, { type: "array" }, { type: "date" }, { allOf: [] }] as Schema[]) {
    expect(() => writer.typeOf(schema)).toThrow("no type is known");
  }
});
