import { randomBytes } from "node:crypto";
import { createIdSource, SIGNING_SECRET_PREFIX } from "../../../shared/domain/ids.ts";
import { ENVIRONMENTS } from "../../../shared/domain/scope.ts";
import { makeSecret } from "../../../shared/domain/signing.ts";
import { OLD_SECRET_HOURS } from "../../../shared/domain/webhook.ts";
import { askTime } from "../../../shared/store/database/database.ts";
import { rotateSigningSecret } from "../../../shared/store/resources/secrets.ts";
import { makeCause } from "../cause.ts";
import { type Command, parseChoice, table } from "../command.ts";
import { requireProject } from "./project.ts";

export const secretRotate: Command = {
  usage: "--project ID --environment ENVIRONMENT",
  options: ["project", "environment"],
  async run(input, { db, operator, openSeal }) {
    const environment = parseChoice(input.required("environment"), "--environment", ENVIRONMENTS);
    const project = await requireProject(db, input.required("project"), "--project");
    const seal = await openSeal();
    const secret = makeSecret(randomBytes);
    const id = createIdSource(randomBytes).next(SIGNING_SECRET_PREFIX, await askTime(db));
    await rotateSigningSecret(
      db,
      { id, projectNo: project.no, environment, sealed: seal.seal(secret) },
      await makeCause({ db, operator }),
      null,
    );
    return {
      json: { project_id: project.id, environment, secret },
      text: table([
        ["project", project.id],
        ["environment", environment],
        ["signing secret (shown this once)", secret],
        ["the old one also signs for", `${OLD_SECRET_HOURS} h`],
      ]),
    };
  },
};
