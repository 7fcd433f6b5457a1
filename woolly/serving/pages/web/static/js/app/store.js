// Storage: conversations in IndexedDB, small values in localStorage.

const DATABASE = "woolly";
const TABLE = "conversations";

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function transact(mode, work) {
  const table = (await database()).transaction(TABLE, mode).objectStore(TABLE);
  return new Promise((resolve, reject) => {
    const request = work(table);
    table.transaction.oncomplete = () => resolve(request.result);
    table.transaction.onabort = () => reject(table.transaction.error);
  });
}

/** Return all conversations. */
export const readAll = () => transact("readonly", (table) => table.getAll());

/** Return a stored conversation, or undefined. */
export const readOne = (id) => transact("readonly", (table) => table.get(id));

/** Store a conversation and notify other tabs. */
export async function write(conversation) {
  await transact("readwrite", (table) => table.put(structuredClone(conversation)));
  channel?.postMessage(conversation.id);
}

/** Delete a conversation and notify other tabs. */
export async function remove(id) {
  await transact("readwrite", (table) => table.delete(id));
  channel?.postMessage(id);
}

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(DATABASE);

/** Call `listener` with the id of a conversation that another tab changed. */
export function onChange(listener) {
  channel?.addEventListener("message", (event) => listener(event.data));
}

/** Small values by name. Errors of a full or disabled storage are ignored. */
export const small = {
  get(name, fallback = null) {
    try {
      return JSON.parse(localStorage.getItem(`woolly.${name}`)) ?? fallback;
    } catch {
      return fallback;
    }
  },
  set(name, value) {
    try {
      if (value === null || value === "") localStorage.removeItem(`woolly.${name}`);
      else localStorage.setItem(`woolly.${name}`, JSON.stringify(value));
    } catch {
      // The page works without storage.
    }
  },
};
