import { expect, test } from "bun:test";
import { once } from "node:events";
import { connect } from "node:net";
import { startTarget } from "./target.ts";

test("a request whose body breaks off is open no longer", async () => {
  const target = startTarget();
  const socket = connect(target.port, "127.0.0.1");
  await once(socket, "connect");
  socket.write("POST /hook HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\nabc");
  while (target.open === 0) await turn();
  socket.destroy();
  while (target.open > 0) await turn();
  expect([target.openMax, target.arrivals]).toEqual([1, []]);
  await target.stop();
});

const turn = () => new Promise((resolve) => setImmediate(resolve));
