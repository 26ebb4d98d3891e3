import { randomBytes } from "node:crypto";
import { createIdSource } from "../../../shared/domain/ids.ts";
import { ENVIRONMENTS } from "../../../shared/domain/scope.ts";
import { makeSecret } from "../../../shared/domain/signing.ts";
import { askTime } from "../../../shared/store/database/database.ts";
import { rotateSigningSecret } from "../../../shared/store/resources/secrets.ts";
import { makeCause } from "../cause.ts";
import { type Command, parseChoice, table } from "../command.ts";
import { SECRET_ID_PREFIX } from "../create-project.ts";
import { requireProject } from "./project.ts";

/** The old secret goes on signing beside the new one for this long. */
const OVERLAP_HOURS = 24;

export const secretRotate: Command = {
  usage: "--project ID --environment ENVIRONMENT",
  options: ["project", "environment"],
  async run(input, { db, operator, openSeal }) {
    const environment = parseChoice(input.required("environment"), "--environment", ENVIRONMENTS);
    const project = await requireProject(db, input.required("project"), "--project");
    const seal = await openSeal();
    const secret = makeSecret(randomBytes);
    const id = createIdSource(randomBytes).next(SECRET_ID_PREFIX, await askTime(db));
    await rotateSigningSecret(
      db,
      { id, projectNo: project.no, environment, sealed: seal.seal(secret) },
      OVERLAP_HOURS,
      await makeCause({ db, operator }),
    );
    return {
      json: { project_id: project.id, environment, secret },
      text: table([
        ["project", project.id],
        ["environment", environment],
        ["signing secret (shown this once)", secret],
        ["the old one also signs for", `${OVERLAP_HOURS} h`],
      ]),
    };
  },
};
