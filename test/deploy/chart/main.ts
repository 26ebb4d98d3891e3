import { writeGenerated } from "./files.ts";

/** `npm run chart`: writes the generated files of deploy/chart anew. */
writeGenerated();
