// A macexec host as three plain objects, straight from the .proto files: jobs, files
// and host. Each has call (one request, one answer), send (a stream to the host) and
// receive (a stream from it).
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const protos = fileURLToPath(new URL('../../proto/', import.meta.url));

// Names as in the .proto files; 64-bit numbers as text, since JavaScript would round
// them; every field there, also when it is empty.
const definition = loader.loadSync(
  ['macexec/v1/error.proto', 'macexec/v1/job_service.proto', 'macexec/v1/file_service.proto', 'macexec/v1/host_service.proto'],
  { includeDirs: [protos], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true },
);
const { macexec } = grpc.loadPackageDefinition(definition);

// What is needed here of google.rpc.Status.
const rpcStatus = loader.fromJSON(
  {
    nested: {
      Status: { fields: { details: { rule: 'repeated', type: 'Detail', id: 3 } } },
      Detail: { fields: { type_url: { type: 'string', id: 1 }, value: { type: 'bytes', id: 2 } } },
    },
  },
  { keepCase: true, defaults: true, arrays: true },
).Status;

// connect makes the clients for an address that gRPC knows, such as
// unix:/path/of/macexec.sock. It does not connect yet.
export function connect(address) {
  const credentials = grpc.credentials.createInsecure(); // the socket's own permissions protect it
  const services = ['JobService', 'FileService', 'HostService'].map((name) => new macexec.v1[name](address, credentials));
  const [jobs, files, host] = services.map(wrap);
  return { jobs, files, host, close: () => services.forEach((service) => service.close()) };
}

function wrap(service) {
  return {
    call: (method, request) =>
      new Promise((resolve, reject) => {
        service[method](request, (error, answer) => (error ? reject(explained(error)) : resolve(answer)));
      }),

    send: async (method, messages) => {
      let stream;
      const answer = new Promise((resolve, reject) => {
        stream = service[method]((error, answer) => (error ? reject(explained(error)) : resolve(answer)));
      });
      let answered = false; // before everything was sent: the host has enough, or is gone
      const end = () => (answered = true);
      answer.then(end, end);
      try {
        for await (const message of messages) {
          if (answered) break;
          if (!stream.write(message)) await Promise.race([once(stream, 'drain'), answer]);
        }
      } catch (error) {
        if (!answered) stream.cancel(); // a file that could not be read: nothing more of it shall count
        throw error;
      }
      stream.end();
      return answer;
    },

    receive: async function* (method, request) {
      const stream = service[method](request);
      try {
        yield* stream;
      } catch (error) {
        throw explained(error);
      } finally {
        stream.cancel();
      }
    },
  };
}

// explained adds what the host says about an error: its class, code, findings and
// whether to repeat it.
function explained(error) {
  const [status] = error.metadata?.get('grpc-status-details-bin') ?? [];
  if (status) error.macexec = detail(status);
  return error;
}

// detail finds macexec.v1.Error among the details of a google.rpc.Status.
function detail(status) {
  for (const { type_url, value } of rpcStatus.deserialize(status).details) {
    if (type_url.endsWith('/macexec.v1.Error')) return definition['macexec.v1.Error'].deserialize(value);
  }
  return undefined;
}
