//! Digests of values, and of all data: whether two servers, or a server before and after, hold the same.
//!
//! They equal the digests of Redis and Valkey, so that data can be compared across servers. A digest is 20
//! bytes that start as zeros and take up pieces in two ways. Pieces are *added* where the order does not
//! matter (keys of a database, members of a set), and *mixed in* where it does (elements of a list). The
//! representation of a value changes nothing.

use evenkeel_resp::float;
use evenkeel_store::collection::{Array, Hash, List, Set, Stream, ZSet};
use evenkeel_store::{Kind, SlotGuard, View};

use crate::admin::ServerCall;
use evenkeel_command::flow::{Done, Flow};

/// See the module's text.
#[derive(Clone, Copy, Default)]
struct Digest([u8; 20]);

impl Digest {
    fn add(&mut self, piece: &[u8]) {
        let hash = sha1_smol::Sha1::from(piece).digest().bytes();
        self.0.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
    }

    fn mix(&mut self, piece: &[u8]) {
        self.add(piece);
        self.0 = sha1_smol::Sha1::from(self.0).digest().bytes();
    }

    fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Mixes a value in, and adds that it expires.
    fn take(&mut self, view: View<'_>) {
        self.mix(&number_of(view.kind()).to_be_bytes());
        match view.kind() {
            Kind::String => self.mix(&view.string().bytes()),
            Kind::List => self.take_list(&view.collection::<List>()),
            Kind::Set => self.take_set(&view.collection::<Set>()),
            Kind::ZSet => self.take_zset(&view.collection::<ZSet>()),
            Kind::Hash => self.take_hash(&view.collection::<Hash>()),
            Kind::Stream => self.take_stream(&view.collection::<Stream>()),
            Kind::Array => self.take_array(&view.collection::<Array>()),
        }
        if view.deadline().is_some() {
            self.add(b"!!expire!!");
        }
    }

    fn take_list(&mut self, list: &List) {
        list.range(0..list.len()).for_each(|element| self.mix(element));
    }

    fn take_set(&mut self, set: &Set) {
        set.iter().for_each(|member| self.add(&member));
    }

    fn take_zset(&mut self, set: &ZSet) {
        for (member, score) in set.range(0..set.len()) {
            let mut pair = Digest::default();
            pair.mix(member);
            // Whether a zero has a sign depends on the encoding, which a replica need not share.
            pair.mix(float::Text::new(score + 0.0).as_bytes());
            self.add(&pair.0);
        }
    }

    fn take_hash(&mut self, hash: &Hash) {
        for field in hash.fields() {
            let mut pair = Digest::default();
            pair.mix(field.name);
            pair.mix(field.value);
            if field.deadline.is_some() {
                pair.add(b"!!hexpire!!");
            }
            self.add(&pair.0);
        }
    }

    fn take_array(&mut self, array: &Array) {
        for (index, value) in array.range(0..array.count()) {
            let mut pair = Digest::default();
            pair.mix(index.to_string().as_bytes());
            pair.mix(value);
            self.add(&pair.0);
        }
    }

    /// Takes the entries, and nothing of groups.
    fn take_stream(&mut self, stream: &Stream) {
        for entry in stream.entries().range(0..stream.len()) {
            self.mix(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
            for (name, value) in entry.fields() {
                self.mix(name);
                self.mix(value);
            }
        }
    }
}

/// Redis' number of a type.
fn number_of(kind: Kind) -> u32 {
    match kind {
        Kind::String => 0,
        Kind::List => 1,
        Kind::Set => 2,
        Kind::ZSet => 3,
        Kind::Hash => 4,
        Kind::Stream => 6,
        Kind::Array => 7,
    }
}

/// DEBUG DIGEST: of all keys that have not expired, in all databases.
pub(super) fn digest(call: &mut ServerCall<'_, '_>) -> Done {
    let mut all = Digest::default();
    for db in 0..call.server.core.keyspace.databases() {
        take_database(&mut all, call.base.guard, db);
    }
    call.base.reply.simple(&all.hex());
    Ok(Flow::Replied)
}

fn take_database(all: &mut Digest, guard: &mut SlotGuard<'_>, db: usize) {
    let mut begun = false;
    guard.for_each_key(db, |view| {
        if !std::mem::replace(&mut begun, true) {
            all.mix(&(db as u32).to_be_bytes());
        }
        let mut pair = Digest::default();
        pair.mix(view.key());
        pair.take(view);
        all.add(&pair.0);
    });
}

/// DEBUG DIGEST-VALUE [key ...]: zeros for a missing key.
pub(super) fn digest_value(call: &mut ServerCall<'_, '_>) -> Done {
    let names = call.base.args.from(2);
    call.base.reply.array(names.len());
    for name in names {
        let key = call.server.core.keyspace.key(call.session.db, name);
        let digest = call.base.guard.visit(key.place, |guard| {
            let mut digest = Digest::default();
            if let Some(view) = guard.peek(&key) {
                digest.take(view);
            }
            digest
        });
        call.base.reply.simple(&digest.hex());
    }
    Ok(Flow::Replied)
}

#[cfg(test)]
mod tests {
    use crate::testing::{World, check};

    #[test]
    fn digests_match_valkey() {
        check(
            "
            > DEBUG DIGEST                     < 0000000000000000000000000000000000000000
            > SET s hello
            > SET n 123
            > RPUSH L a b c 5
            > SADD S 1 2 3
            > SADD T a b 7
            > ZADD Z 1 a 2.5 b -inf c 0.1 d
            > HSET H f v g 12 9 w
            > XADD X 1-1 a b c d
            > XADD X 2-5 a 7
            > SET e v
            > PEXPIREAT e 99999999999999
            > SET g v
            > SELECT 3
            > SET other x
            > SELECT 0
            > DEBUG DIGEST                     < edc42be0e340e87860068a3f5e84eaaabcee4e45
            > DEBUG DIGEST-VALUE s n
            < [36b23a1456b2dce2c3ed252c456761301dba8060, 89f7f51b707418f666d5b45e053bd5bbbf82ac2b]
            > DEBUG DIGEST-VALUE L             < [ea7c5a45e7a51ee30372409842ca14b012b55028]
            > DEBUG DIGEST-VALUE S             < [2a462a3f51a1db89738ebbeef0c47ce1bbc85246]
            > DEBUG DIGEST-VALUE T             < [4db2915dc242371e719444ddc8b328e38ac18e1c]
            > DEBUG DIGEST-VALUE Z             < [1682f70c87c6d3febb63bd0d7c0dcda8b7d6c4f3]
            > DEBUG DIGEST-VALUE H             < [d966d24ad364c8492c0f2e7a7a4695645ebd51c8]
            > DEBUG DIGEST-VALUE X             < [71698f7252d689a9261f3ca6dfb636824826577a]
            > DEBUG DIGEST-VALUE e             < [311b17018163335616e089f6b951c82c477335ac]
            > DEBUG DIGEST-VALUE nosuch        < [0000000000000000000000000000000000000000]
            > DEBUG DIGEST-VALUE               < []
            > DEBUG DIGEST x
            < -ERR unknown subcommand or wrong number of arguments for 'DIGEST'. Try DEBUG HELP.
        ",
        );
    }

    #[test]
    fn field_deadlines_change_the_digest() {
        let mut world = World::new();
        world.check("> HSET H f v < :1");
        let before = world.run("DEBUG DIGEST-VALUE H");
        world.check("> HPEXPIREAT H 99999999999999 FIELDS 1 f < [:1]");
        assert_ne!(world.run("DEBUG DIGEST-VALUE H"), before);
    }

    /// A replica reads a small set as a listpack, where a zero has no sign.
    #[test]
    fn the_sign_of_a_zero_does_not_change_the_digest() {
        let mut world = World::new();
        let long = "q".repeat(70);
        world.check("> ZADD small 0 m < :1");
        let before = world.run("DEBUG DIGEST-VALUE small");
        world.check(&format!("> ZADD large 1 {long} < :1"));
        world.check("> ZADD large -0 m < :1");
        world.check(&format!("> ZREM large {long} < :1"));
        assert_eq!(world.run("ZSCORE large m").to_string(), "\"-0\"");
        assert_eq!(world.run("DEBUG DIGEST-VALUE large"), before);
    }
}
