// The Store: conversations in the browser's database, small things in its local storage.

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

/** All conversations. */
export const readAll = () => transact("readonly", (table) => table.getAll());

/** Returns one stored conversation; undefined if there is none. */
export const readOne = (id) => transact("readonly", (table) => table.get(id));

/** Stores one, and notifies other tabs. */
export async function write(conversation) {
  await transact("readwrite", (table) => table.put(structuredClone(conversation)));
  channel?.postMessage(conversation.id);
}

/** Deletes one, and notifies other tabs. */
export async function remove(id) {
  await transact("readwrite", (table) => table.delete(id));
  channel?.postMessage(id);
}

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(DATABASE);

/** Calls with the id of a conversation that another tab changed. */
export function onChange(listener) {
  channel?.addEventListener("message", (event) => listener(event.data));
}

/** Small things by name; what cannot be kept (a full or closed storage) is done without. */
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
      // The page works without.
    }
  },
};
