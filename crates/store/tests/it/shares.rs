//! Shares of long elements keep their content for ever, and long elements stay in place when other elements
//! come and go.

use evenkeel_store::collection::{Collection, Hash, List, Set, Share, ZSet};
use evenkeel_store::{Expire, Hasher};
use evenkeel_testkit::random::{Random, fresh_seed};

const LONG: usize = 20_000;

fn word(number: usize) -> Vec<u8> {
    format!("{number}").into_bytes()
}

/// Now and then a long element, which begins with its number.
fn element(random: &mut Random, number: usize) -> Vec<u8> {
    let mut element = word(number);
    if random.chance(10) {
        element.resize(LONG + number, b'.');
    }
    element
}

#[test]
fn a_long_element_is_not_moved_for_its_neighbours() {
    let hasher = Hasher::default();
    let (mut hash, mut set, mut zset, mut list) = (Hash::new(), Set::new(), ZSet::new(), List::new());
    let long = vec![b'x'; 1_000_000];
    hash.set(&hasher, 0, b"long", &long, Expire::Clear);
    set.insert(&hasher, &long);
    zset.insert(&hasher, &long, 500.0);
    list.push_back(&long);
    let addresses = |hash: &Hash, set: &Set, zset: &ZSet, list: &List| {
        let member = (0..set.len()).find(|at| set.get(*at).is_some_and(|member| member.len() > LONG));
        let ranked = (0..zset.len()).find(|at| zset.get(*at).is_some_and(|(member, _)| member.len() > LONG));
        let item = (0..list.len()).find(|at| list.get(*at).is_some_and(|item| item.len() > LONG));
        [
            hash.share(&hasher, b"long").as_ptr(),
            set.share(member.expect("it is there")).as_ptr(),
            zset.share(ranked.expect("it is there")).as_ptr(),
            list.share(item.expect("it is there")).as_ptr(),
        ]
    };
    let before = addresses(&hash, &set, &zset, &list);
    for number in 0..1000 {
        let word = word(number);
        hash.set(&hasher, 0, &word, &word, Expire::Clear);
        set.insert(&hasher, &word);
        zset.insert(&hasher, &word, number as f64);
        if number % 2 == 0 { list.push_back(&word) } else { list.push_front(&word) }
    }
    assert_eq!(addresses(&hash, &set, &zset, &list), before);
    for number in 0..1000 {
        let word = word(number);
        hash.remove(&hasher, 0, &word);
        set.remove(&hasher, &word);
        zset.remove(&hasher, &word);
    }
    assert_eq!(addresses(&hash, &set, &zset, &list), before);
}

#[test]
fn shared_strings_match_copies() {
    let seed = fresh_seed();
    println!("EVENKEEL_SEED={seed}");
    let (mut random, hasher) = (Random::new(seed), Hasher::default());
    let (mut hash, mut set, mut zset, mut list) = (Hash::new(), Set::new(), ZSet::new(), List::new());
    let mut kept: Vec<(Share, Vec<u8>)> = Vec::new();
    for _ in 0..if cfg!(miri) { 100 } else { 5000 } {
        let number = random.below(60);
        let (element, name) = (element(&mut random, number), word(number));
        match random.below(10) {
            0..3 => {
                hash.set(&hasher, 0, &name, &element, Expire::Clear);
                set.insert(&hasher, &element);
                zset.insert(&hasher, &element, number as f64);
                list.insert(random.below(list.len() as usize + 1) as u64, &element);
            }
            3 => {
                hash.remove(&hasher, 0, &name);
                set.remove(&hasher, &element);
                zset.remove(&hasher, &element);
            }
            4 if list.len() > 0 => drop(list.remove(0..1)),
            5 if list.len() > 30 => drop(list.remove(5..20)),
            6 if list.len() > 0 => list.set(random.below(list.len() as usize) as u64, &element),
            7 if random.chance(5) => {
                (hash, set, zset, list) = (Hash::new(), Set::new(), ZSet::new(), List::new())
            }
            _ => {}
        }
        if let Some(value) = hash.get(&hasher, 0, &name) {
            kept.push((hash.share(&hasher, &name), value.to_vec()));
        }
        let mut position = |len: u64| (len > 0).then(|| random.below(len.max(1) as usize) as u64);
        if let Some(at) = position(hash.size()) {
            let (field, (name, value)) = (hash.at(at).expect("a position inside"), hash.shares_at(at));
            kept.extend([(name, field.name.to_vec()), (value, field.value.to_vec())]);
        }
        if let Some(at) = position(list.len()) {
            kept.push((list.share(at), list.get(at).expect("a position inside").to_vec()));
        }
        if let Some(at) = position(set.len()).filter(|_| !set.is_packed()) {
            kept.push((set.share(at), set.get(at).expect("a position inside").to_vec()));
        }
        if let Some(at) = position(zset.len()) {
            kept.push((zset.share(at), zset.get(at).expect("a position inside").0.to_vec()));
        }
        if kept.len() > 300 {
            kept.drain(..).for_each(|(share, copy)| {
                let from = copy.len() / 3;
                assert!(*share == copy[..] && share.skip(from)[..] == copy[from..]);
            });
        }
    }
}
