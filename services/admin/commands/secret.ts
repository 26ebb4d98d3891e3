import { randomBytes } from "node:crypto";
import { timestampOrNull } from "../../../shared/contract/timestamp.ts";
import { createIdSource, SIGNING_SECRET_PREFIX } from "../../../shared/domain/ids.ts";
import { ENVIRONMENTS } from "../../../shared/domain/scope.ts";
import { makeSecret } from "../../../shared/domain/signing.ts";
import { OLD_SECRET_HOURS } from "../../../shared/domain/webhook.ts";
import { askTime } from "../../../shared/store/database/database.ts";
import { findSigningSecret, rotateSigningSecret } from "../../../shared/store/resources/secrets.ts";
import { makeCause } from "../cause.ts";
import { type Command, parseChoice, Refusal, table } from "../command.ts";
import { requireProject } from "./project.ts";

export const secretShow: Command = {
  usage: "--project ID --environment ENVIRONMENT",
  options: ["project", "environment"],
  async run(input, { db, openSeal }) {
    const environment = parseChoice(input.required("environment"), "--environment", ENVIRONMENTS);
    const project = await requireProject(db, input.required("project"), "--project");
    const found = await findSigningSecret(db, { projectNo: project.no, environment });
    if (found === null) throw new Refusal(`${project.id} has no signing secret: \`secret rotate\` makes one`);
    const secret = (await openSeal()).open(found.sealed);
    const until = timestampOrNull(found.previousExpiresAt);
    return {
      json: { project_id: project.id, environment, secret, previous_expires_at: until },
      text: table([
        ["project", project.id],
        ["environment", environment],
        ["signing secret", secret],
        ...(until === null ? [] : [["the one before also signs until", until]]),
      ]),
    };
  },
};

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
