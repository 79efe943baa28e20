//! What clients and the server say to each other: messages, as bytes.
//!
//! Each message is one JSON value. Here: what is accepted, and why something is not. Not here:
//! sockets and descriptors (`socket.rs`), and whether a mapping can be served, which the library
//! checks. `docs/serve.md` has the protocol for people.

use std::fmt;
use std::marker::PhantomData;

use pinfold::{ClientMapping, ClientMemory, ClientsStats};
use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The protocol's version: the value of `pinfold` in a message.
pub const VERSION: u64 = 1;

/// The longest message, in bytes.
pub const MESSAGE_MAX_BYTES: usize = 256 << 10;

/// The longest message of a client that is served: it has nothing to say but what it wants.
pub(super) const SERVED_MESSAGE_MAX_BYTES: usize = 4 << 10;

/// The most levels of arrays and objects in a message.
const DEPTH_MAX: usize = 64;

/// The most mappings in a message, as the library says. More are not even made.
const MAPPINGS_MAX: usize = 1024;

const PAGE_BYTES: u64 = 4096;

/// Why a client is not served that has done nothing wrong.
pub const NO_DESCRIPTORS: &str = "the server has no descriptors left: connect again later";
/// What a client is told where the system lets the server send no descriptor (ETOOMANYREFS).
pub const NOT_RECEIVED: &str = "clients have not received too many of the descriptors that the \
                                server's user has sent: connect again later";
/// Why a client is not served whose thread has failed.
pub const FAILED: &str = "the server cannot serve its faults any more: connect again";

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The descriptor of the memory that clients share.
    Memory,
    /// Counters.
    Stats,
    /// To be served. With the client's userfaultfd.
    Serve(Vec<ClientMapping>),
}

/// A mapping, in the words of Firecracker's handshake.
#[derive(Debug, Serialize, Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    /// May be absent if there is none: of zeros.
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page_size: Option<u64>,
    /// The name that older versions of Firecracker have for it. It is in bytes, too.
    #[serde(default, skip_serializing)]
    page_size_kib: Option<u64>,
    #[serde(default, skip_serializing_if = "is_private")]
    memory: Kind,
}

/// [`ClientMemory`] in a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Shared,
    #[default]
    Private,
    Zeros,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_private(kind: &Kind) -> bool {
    *kind == Kind::Private
}

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    pinfold: u64,
    want: String,
}

/// Says whether a message has the key, whatever its value is.
#[derive(Debug, Deserialize)]
struct Greeting {
    #[serde(default, deserialize_with = "is_there")]
    pinfold: bool,
}

fn is_there<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(value).map(|_| true)
}

/// A struct whose fields have keys in the message, each at most once. Serde would also read it from
/// an array, by the order of the fields.
struct Keyed<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Keyed<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(Keys(PhantomData)).map(Keyed)
    }
}

struct Keys<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Keys<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// What the server answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// The version.
    pub pinfold: u64,
    /// To [`Request::Memory`]: the length of the memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// To [`Request::Serve`]: the number of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u64>,
    /// To [`Request::Stats`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<Stats>,
    /// Why the client is not served, or not any more. The last message of a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counters of a server, since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/serve.md has the table")]
pub struct Stats {
    pub clients: u64,
    pub added: u64,
    pub faults: u64,
    pub waited: u64,
    pub again: u64,
    pub installed: u64,
    pub installed_ahead: u64,
    pub failed: u64,
    pub shared_bytes: u64,
    pub read_bytes: u64,
    pub touched: u64,
    pub ahead: u64,
    pub reading: u64,
}

impl Stats {
    /// Also those of these clients.
    pub fn add(&mut self, clients: &ClientsStats) {
        self.clients += clients.clients;
        self.added += clients.added;
        self.faults += clients.faults;
        self.waited += clients.waited;
        self.again += clients.again;
        self.installed += clients.installed;
        self.installed_ahead += clients.installed_ahead;
        self.failed += clients.failed;
        self.ahead += clients.ahead;
        self.reading += clients.reading;
    }
}

impl Reply {
    /// Nothing yet.
    pub fn new() -> Self {
        Reply { pinfold: VERSION, ..Reply::default() }
    }

    /// As a message.
    pub fn message(&self) -> Vec<u8> {
        line(self)
    }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(value).expect("plain structs become JSON");
    text.push(b'\n');
    text
}

impl Request {
    /// As a message.
    pub fn message(&self) -> Vec<u8> {
        let want = |want: &str| line(&Hello { pinfold: VERSION, want: want.to_owned() });
        match self {
            Request::Memory => want("memory"),
            Request::Stats => want("stats"),
            Request::Serve(mappings) => {
                let mappings = mappings.iter().map(|mapping| Mapping {
                    base_host_virt_addr: mapping.address,
                    size: mapping.bytes,
                    offset: Some(mapping.offset),
                    page_size: Some(PAGE_BYTES),
                    page_size_kib: None,
                    memory: match mapping.memory {
                        ClientMemory::Shared => Kind::Shared,
                        ClientMemory::Private => Kind::Private,
                        ClientMemory::Zeros => Kind::Zeros,
                    },
                });
                line(&mappings.collect::<Vec<_>>())
            }
        }
    }
}

/// What has come, in pieces of any length, and the messages in it. Each byte is looked at once
/// until its message is complete.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Where the message begins that is not complete yet, and how far it was looked at.
    start: usize,
    at: usize,
    /// Arrays and objects that are open there.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl Messages {
    /// More has come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// How many bytes there are of the message that is not complete.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether a message has begun that is not complete.
    pub fn is_in_the_middle(&self) -> bool {
        self.depth > 0
    }

    /// The text of the next message, which is JSON; `None` if more has to come. Takes no memory but
    /// what has come, and keeps none of what was taken.
    ///
    /// # Errors
    /// It is no message, or too long.
    pub fn take(&mut self) -> Result<Option<&str>, String> {
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            if self.depth == 0 {
                match byte {
                    b' ' | b'\t' | b'\r' | b'\n' => {
                        self.start = self.at;
                        continue;
                    }
                    b'{' | b'[' => {}
                    b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                        return Err("a message is an object or an array".to_owned());
                    }
                    _ => {
                        let byte = char::from(byte);
                        return Err(format!("what came is not JSON: it begins with {byte:?}"));
                    }
                }
            }
            if self.is_in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth > DEPTH_MAX {
                return Err(format!("a message has more than {DEPTH_MAX} levels"));
            }
            if self.depth == 0 {
                let message = &self.bytes[std::mem::replace(&mut self.start, self.at)..self.at];
                let no_json = |why: &dyn fmt::Display| format!("what came is not JSON: {why}");
                let message = std::str::from_utf8(message).map_err(|why| no_json(&why))?;
                serde_json::from_str::<IgnoredAny>(message).map_err(|why| no_json(&why))?;
                return Ok(Some(message));
            }
        }
        if self.start > 0 {
            self.bytes = self.bytes.split_off(std::mem::take(&mut self.start));
            self.at = self.bytes.len();
        }
        if self.bytes.len() > MESSAGE_MAX_BYTES {
            return Err(format!("a message has more than {MESSAGE_MAX_BYTES} bytes"));
        }
        Ok(None)
    }
}

/// Whether the client reads answers, also that it was wrong. Firecracker does not; its messages
/// have no such key.
pub fn is_from_a_listener(message: &str) -> bool {
    // Of an object it fails only if the key is there twice.
    message.starts_with('{')
        && serde_json::from_str(message).map_or(true, |Keyed(Greeting { pinfold })| pinfold)
}

/// What a message asks for.
///
/// # Errors
/// It cannot be understood.
pub fn request(message: &str) -> Result<Request, String> {
    if message.starts_with('[') {
        let wrong = |why: serde_json::Error| format!("the mappings: {why}");
        // That takes no memory.
        let count = serde_json::from_str::<Vec<IgnoredAny>>(message).map_err(wrong)?.len();
        if count > MAPPINGS_MAX {
            return Err(format!("{count} mappings: there must be 1 to {MAPPINGS_MAX}"));
        }
        let mappings: Vec<Keyed<Mapping>> = serde_json::from_str(message).map_err(wrong)?;
        let mappings: Result<_, String> = mappings.into_iter().enumerate().map(mapping).collect();
        return mappings.map(Request::Serve);
    }
    let Keyed(hello): Keyed<Hello> =
        serde_json::from_str(message).map_err(|error| error.to_string())?;
    if hello.pinfold != VERSION {
        return Err(format!("version {} of the protocol: there is {VERSION}", hello.pinfold));
    }
    match hello.want.as_str() {
        "memory" => Ok(Request::Memory),
        "stats" => Ok(Request::Stats),
        _ => Err("what is wanted is neither \"memory\" nor \"stats\"".to_owned()),
    }
}

fn mapping((n, Keyed(mapping)): (usize, Keyed<Mapping>)) -> Result<ClientMapping, String> {
    let Mapping { base_host_virt_addr, size, offset, page_size, page_size_kib, memory } = mapping;
    let page_bytes = page_size.or(page_size_kib).unwrap_or(PAGE_BYTES);
    if page_bytes != PAGE_BYTES {
        return Err(format!("mapping {n}: pages of {page_bytes} bytes: there are those of 4096"));
    }
    let memory = match memory {
        Kind::Shared => ClientMemory::Shared,
        Kind::Private => ClientMemory::Private,
        Kind::Zeros => ClientMemory::Zeros,
    };
    let offset = match (offset, memory) {
        (Some(offset), _) => offset,
        (None, ClientMemory::Zeros) => 0,
        (None, _) => return Err(format!("mapping {n}: missing field `offset`")),
    };
    Ok(ClientMapping { address: base_host_virt_addr, bytes: size, offset, memory })
}

/// What the server has answered.
///
/// # Errors
/// It cannot be understood.
pub fn reply(message: &str) -> Result<Reply, String> {
    let reply: Reply = serde_json::from_str(message).map_err(|error| error.to_string())?;
    if reply.pinfold != VERSION {
        return Err(format!("the server has version {} of the protocol", reply.pinfold));
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Request>, String> {
        let mut messages = Messages::default();
        messages.push(text.as_bytes());
        messages.take()?.map(request).transpose()
    }

    #[test]
    fn what_is_said_is_understood() {
        let mapping =
            |memory| ClientMapping { address: 1 << 46, bytes: 8192, offset: 4096, memory };
        let kinds = [ClientMemory::Shared, ClientMemory::Private, ClientMemory::Zeros];
        let requests =
            [Request::Memory, Request::Stats, Request::Serve(kinds.map(mapping).to_vec())];
        for request in requests {
            let message = request.message();
            assert_eq!(parsed(std::str::from_utf8(&message).unwrap()), Ok(Some(request)));
        }
        let said = Reply { client: Some(7), ..Reply::new() };
        let mut messages = Messages::default();
        messages.push(&said.message());
        let message = messages.take().unwrap().unwrap();
        assert_eq!(reply(message).unwrap().client, Some(7));
    }

    #[test]
    fn firecrackers_handshakes_are_understood() {
        let right = ClientMapping {
            address: 140_000_000_000_000 / 4096 * 4096,
            bytes: 1 << 28,
            offset: 0,
            memory: ClientMemory::Private,
        };
        let address = right.address;
        let today = format!(
            "[{{\"base_host_virt_addr\":{address},\"size\":268435456,\"offset\":0,\
             \"page_size\":4096,\"page_size_kib\":4096}}]"
        );
        let older = today.replace("\"page_size\":4096,", "");
        let oldest = today.replace(",\"page_size\":4096,\"page_size_kib\":4096", "");
        for text in [today, older, oldest] {
            assert_eq!(parsed(&text), Ok(Some(Request::Serve(vec![right]))), "{text}");
        }
    }

    #[test]
    fn zeros_need_no_offset() {
        let memory = ClientMemory::Zeros;
        let zeros = ClientMapping { address: 8192, bytes: 4096, offset: 0, memory };
        let text = r#"[{"base_host_virt_addr":8192,"size":4096,"memory":"zeros"}]"#;
        assert_eq!(parsed(text), Ok(Some(Request::Serve(vec![zeros]))));
    }

    #[test]
    fn a_message_comes_in_pieces() {
        let text = String::from_utf8(Request::Memory.message()).unwrap();
        for end in 0..text.len() - 2 {
            assert_eq!(parsed(&text[..end]), Ok(None), "{}", &text[..end]);
        }
        // Whatever the pieces are.
        let texts = [r#"{"a": "\\\"]}[{\\\\"}"#, "[1, [2, {}], \"\u{e9}\"]", "{}"];
        let all = format!(" {}\n\n{}{} ", texts[0], texts[1], texts[2]).into_bytes();
        for piece in 1..all.len() {
            let (mut messages, mut found) = (Messages::default(), Vec::new());
            for piece in all.chunks(piece) {
                messages.push(piece);
                while let Some(message) = messages.take().unwrap() {
                    found.push(message.to_owned());
                }
            }
            assert_eq!(found, texts, "pieces of {piece}");
            assert!(!messages.is_in_the_middle());
        }
    }

    #[test]
    fn each_byte_is_looked_at_once() {
        let mut messages = Messages::default();
        for n in 0..MESSAGE_MAX_BYTES {
            messages.push(if n == 0 { b"[" } else { b" " });
            assert_eq!(messages.take(), Ok(None));
            assert_eq!(messages.at, n + 1);
        }
    }

    #[test]
    fn who_has_said_hello_reads_answers_whatever_else_was_said() {
        let hellos = ["{\"pinfold\":null}", "{\"want\":[],\"pinfold\":{},\"pinfold\":1}"];
        assert!(hellos.into_iter().all(is_from_a_listener));
        let others = ["{}", "[\"pinfold\"]", "{\"a\":{\"pinfold\":1}}", "[{\"pinfold\":1}]"];
        assert!(!others.into_iter().any(is_from_a_listener));
    }

    #[test]
    fn nothing_is_kept_of_what_was_taken() {
        let mut messages = Messages::default();
        messages.push(format!("[{}]", " ".repeat(MESSAGE_MAX_BYTES / 2)).as_bytes());
        assert!(messages.take().unwrap().is_some());
        assert_eq!(messages.take(), Ok(None));
        assert_eq!(messages.bytes.capacity(), 0);
        messages.push(format!(r#"{{"":"{}"}} {{"#, "x".repeat(200_000)).as_bytes());
        assert!(messages.take().unwrap().is_some() && messages.take().unwrap().is_none());
        assert!(messages.is_in_the_middle() && messages.bytes.capacity() < 100);
    }

    #[test]
    fn what_cannot_be_understood_is_told() {
        for (text, why) in [
            ("GET / HTTP/1.1", "what came is not JSON: it begins with 'G'"),
            ("[1 2]", "what came is not JSON: expected `,` or `]` at line 1 column 4"),
            ("]", "what came is not JSON: it begins with ']'"),
            ("17 ", "a message is an object or an array"),
            ("{}", "missing field `pinfold`"),
            (r#"{"pinfold":2,"want":"memory"}"#, "version 2 of the protocol: there is 1"),
            (r#"{"pinfold":1,"want":"all"}"#, "what is wanted is neither \"memory\" nor"),
            ("[1]", "the mappings: invalid type"),
            ("[[4096,4096,0]]", "the mappings: invalid type: sequence, expected an object"),
            (r#"{"pinfold":1,"pinfold":1,"want":"memory"}"#, "duplicate field `pinfold`"),
            (
                r#"[{"base_host_virt_addr":4096,"size":4096,"size":8192,"offset":0}]"#,
                "the mappings: duplicate field `size`",
            ),
            (
                r#"[{"base_host_virt_addr":-4096,"size":4096,"offset":0}]"#,
                "the mappings: invalid value: integer `-4096`",
            ),
            (
                r#"[{"base_host_virt_addr":4096,"size":4096,"memory":"shared"}]"#,
                "mapping 0: missing field `offset`",
            ),
            (r#"[{"base_host_virt_addr":4096,"offset":0}]"#, "the mappings: missing field `size`"),
            (
                r#"[{"base_host_virt_addr":0,"size":4096,"offset":0,"page_size":2097152}]"#,
                "mapping 0: pages of 2097152 bytes: there are those of 4096",
            ),
            (
                r#"[{"base_host_virt_addr":0,"size":4096,"offset":0,"memory":"mine"}]"#,
                "the mappings: unknown variant `mine`",
            ),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(why), "{text}: {error}");
        }
        let many = format!("[{}0]", "0,".repeat(1024));
        assert_eq!(parsed(&many).unwrap_err(), "1025 mappings: there must be 1 to 1024");
        let endless = format!("[{}", " ".repeat(MESSAGE_MAX_BYTES));
        assert_eq!(parsed(&endless).unwrap_err(), "a message has more than 262144 bytes");
        let deep = "[".repeat(100_000);
        assert_eq!(parsed(&deep).unwrap_err(), "a message has more than 64 levels");
    }
}
