// Runs a model with onnxruntime-web's WebAssembly, one thread. Each request on standard input is one line of JSON,
// [{name, type, dims, bytes}], followed by the bytes of all arrays; the answer has the same form, with the time in ms.
const fs = require("fs");
const ort = require("onnxruntime-web");

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
  int16: Int16Array, uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array,
  int64: BigInt64Array, uint64: BigUint64Array,
};

function readExactly(size) {
  const buffer = Buffer.alloc(size);
  let done = 0;
  while (done < size) {
    let count = 0;
    try {
      count = fs.readSync(0, buffer, done, size - done, null);
    } catch (error) {
      if (error.code === "EAGAIN") continue;
      throw error;
    }
    if (count === 0) return null;
    done += count;
  }
  return buffer;
}

function readLine() {
  const letters = [];
  for (;;) {
    const letter = readExactly(1);
    if (letter === null) return null;
    if (letter[0] === 10) return Buffer.from(letters).toString("utf-8");
    letters.push(letter[0]);
  }
}

function write(header, arrays) {
  fs.writeSync(1, JSON.stringify(header) + "\n");
  for (const array of arrays) {
    const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
    for (let done = 0; done < bytes.length; ) done += fs.writeSync(1, bytes, done, bytes.length - done);
  }
}

async function main() {
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "fatal";
  let session;
  try {
    session = await ort.InferenceSession.create(fs.readFileSync(process.argv[2]), { executionProviders: ["wasm"] });
  } catch (error) {
    write({ error: String(error.message || error) }, []);
    return;
  }
  write({ version: ort.env.versions.web }, []);
  for (let line = readLine(); line !== null; line = readLine()) {
    const feeds = {};
    for (const { name, type, dims, bytes } of JSON.parse(line)) {
      const content = readExactly(bytes);
      const kind = ARRAYS[type];
      const data = new kind(content.buffer.slice(content.byteOffset, content.byteOffset + bytes));
      feeds[name] = new ort.Tensor(type, data, dims);
    }
    try {
      const started = performance.now();
      const results = await session.run(feeds);
      const milliseconds = performance.now() - started;
      const outputs = session.outputNames.map((name) => ({
        name, type: results[name].type, dims: results[name].dims, bytes: results[name].data.byteLength,
      }));
      write({ milliseconds, outputs }, session.outputNames.map((name) => results[name].data));
    } catch (error) {
      write({ error: String(error.message || error) }, []);
    }
  }
}

main();
