import type { Log } from "../log.ts";
import { chooseTraces, NO_TRACES, type TraceSettings, type Traces } from "./traces.ts";

/** Loads the recorder only where traces are wanted: its packages take a tenth of a second and 24 MB. */
export async function startTraces(options: {
  service: string;
  nodeName: string;
  settings: TraceSettings;
  log: Log;
}): Promise<Traces> {
  const { settings } = options;
  if (settings === null) return NO_TRACES;
  const { startRecorder } = await import("./recorder.ts");
  return chooseTraces(settings.ratio, startRecorder({ ...options, endpoint: settings.endpoint }));
}
