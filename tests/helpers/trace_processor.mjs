// Runs Perfetto's trace processor (WebAssembly) outside a browser: node trace_processor.mjs ENGINE_FOLDER
// The engine is written for a web worker, so it gets the few globals of one. Every message on stdin and stdout is
// four bytes of length, little-endian, and so many bytes of the TraceProcessorRpc stream.
import { readFileSync, readSync, writeSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const folder = process.argv[2];
class WorkerGlobalScope {}
class XMLHttpRequest {
  open(method, url) { this.file = join(folder, url.split("/").pop()); }
  send() {
    const bytes = readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}
const quiet = { log() {}, warn(text) { process.stderr.write(`${text}\n`); }, error() {}, info() {}, debug() {} };
const scope = {
  WorkerGlobalScope, XMLHttpRequest, TextDecoder, TextEncoder, URL, performance, crypto, setTimeout,
  clearTimeout, console: quiet, location: { href: "http://localhost/engine_bundle.js", protocol: "http:", host: "localhost" },
  addEventListener() {}, navigator: { language: "en" }, ErrorEvent: class {}, PromiseRejectionEvent: class {},
};
scope.self = scope.globalThis = scope;
vm.createContext(scope);
vm.runInContext(readFileSync(join(folder, "engine_bundle.js"), "utf8"), scope);

const inner = vm.runInContext("Uint8Array", scope);
const port = {
  postMessage(reply) {
    const head = Buffer.alloc(4);
    head.writeUInt32LE(reply.length);
    write(head);
    write(Buffer.from(reply.buffer, reply.byteOffset, reply.length));
  },
};
function write(bytes) {
  for (let at = 0; at < bytes.length;) {
    try { at += writeSync(1, bytes, at); } catch (error) { if (error.code !== "EAGAIN") throw error; }
  }
}
function read(size) {
  const bytes = Buffer.alloc(size);
  for (let at = 0; at < size;) {
    const got = readSync(0, bytes, at, size - at, null);
    if (got === 0) process.exit(0);
    at += got;
  }
  return bytes;
}
scope.onmessage({ data: port });
setTimeout(function pump() {
  const request = read(read(4).readUInt32LE());
  const copy = new inner(request.length);
  copy.set(request);
  port.onmessage({ data: copy });
  setTimeout(pump, 0);
}, 50);
