import { type Certificate, makeAuthority } from "../runtime-contract/certificates.ts";
import { answerOf, type RawServer, startRawServer } from "../runtime-contract/raw-server.ts";

export type CertifiedTarget = Omit<RawServer, "stop">;

/** Hosts over TLS under one name, of which one has a certificate for that name. */
export interface CertifiedTargets {
  good: CertifiedTarget;
  /** Hosts to which nothing may be sent: with a certificate of another name, an expired one, a self-signed one. */
  bad: Record<"wrong name" | "expired" | "self-signed", CertifiedTarget>;
  /** The environment of a process that trusts their authority; a process reads it at its start. */
  environment: { NODE_EXTRA_CA_CERTS: string };
  stop(): Promise<void>;
}

/** A name that every machine has for itself. */
const NAME = "localhost";

export async function startCertifiedTargets(): Promise<CertifiedTargets> {
  const authority = makeAuthority();
  const servers: RawServer[] = [];
  const start = async (tls: Certificate): Promise<CertifiedTarget> => {
    const server = await startRawServer((socket) => socket.write(answerOf("200 OK")), { tls });
    servers.push(server);
    return Object.defineProperty(server, "url", { value: `https://${NAME}:${server.port}/` });
  };
  return {
    good: await start(authority.issue(`DNS:${NAME}`)),
    bad: {
      "wrong name": await start(authority.issue("DNS:wrong.example")),
      expired: await start(authority.issue(`DNS:${NAME}`, -1)),
      "self-signed": await start(authority.selfSigned(`DNS:${NAME}`)),
    },
    environment: { NODE_EXTRA_CA_CERTS: authority.certPath },
    async stop() {
      for (const server of servers) await server.stop();
      authority.remove();
    },
  };
}
