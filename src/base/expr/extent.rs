//! How large a value can be at most: what an expression may have to walk, compare and copy, known before it is
//! evaluated.
//!
//! An extent of data follows its members by name, so that a long text beside a list makes nothing of the list dearer.
//! An extent of what an expression makes is only an upper bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

/// Deepest value that expressions may see. JSON that is received has at most 128.
pub const VALUE_DEPTH: usize = 160;
/// Most values (texts, numbers, lists, objects, at any depth) that the variables of one evaluation may have together.
pub const VALUE_NODES: u64 = 200_000;
/// Members of an object that are followed by name. Of a larger one, any member may be as large as the largest.
const NAMED_MEMBERS: usize = 256;

/// An upper bound of a value's size.
#[derive(Debug, Clone, Default)]
pub struct Extent {
    /// Bytes of the value itself, where it may be a text.
    pub text: u64,
    /// Elements or members of the value itself, where it may be a list or an object.
    pub items: u64,
    /// Values in it at any depth, itself included.
    pub nodes: u64,
    /// Bytes of all texts and keys in it.
    pub bytes: u64,
    /// The longest text or key, and the most elements of one list or object, at any depth.
    longest: u64,
    most: u64,
    inside: InnerExtent,
}

#[derive(Debug, Clone, Default)]
enum InnerExtent {
    /// Any part may be as large as the bounds allow.
    #[default]
    Unknown,
    Members(BTreeMap<String, Arc<Extent>>),
    /// The most that any element is.
    Elements(Arc<Extent>),
}

impl Extent {
    /// A value without parts and without a length.
    pub fn plain() -> Extent {
        Extent::text(0)
    }

    /// The extent of a text of so many bytes.
    pub fn text(bytes: u64) -> Extent {
        Extent { text: bytes, nodes: 1, bytes, longest: bytes, ..Extent::default() }
    }

    /// The extent of data; the reason where it is deeper than expressions may see.
    pub fn of(value: &Value) -> Result<Extent, String> {
        measured(value, 0)
    }

    /// A list of values that are known one by one.
    pub fn list(elements: &[Arc<Extent>]) -> Extent {
        let mut list = Extent { items: elements.len() as u64, ..Extent::sum(elements) };
        list.most = list.most.max(list.items);
        list.inside = match elements {
            [] => InnerExtent::Unknown,
            [only] => InnerExtent::Elements(Arc::clone(only)),
            [first, more @ ..] => {
                InnerExtent::Elements(more.iter().fold(Arc::clone(first), |either, more| Extent::union(&either, more)))
            }
        };
        list
    }

    /// An object of members whose names are known where they are written out.
    pub fn object(members: &[(Option<&str>, Arc<Extent>)], keys: &[Arc<Extent>]) -> Extent {
        let parts: Vec<Arc<Extent>> =
            members.iter().map(|(_, member)| Arc::clone(member)).chain(keys.iter().cloned()).collect();
        let mut object = Extent { items: members.len() as u64, ..Extent::sum(&parts) };
        object.most = object.most.max(object.items);
        let named = members.iter().map(|(name, member)| Some(((*name)?.to_owned(), Arc::clone(member))));
        if let Some(named) = named.collect::<Option<BTreeMap<_, _>>>() {
            object.inside = InnerExtent::Members(named);
        }
        object
    }

    /// The most that two joined values are, or a function's result from its arguments: all of them together.
    pub fn concat(parts: &[Arc<Extent>]) -> Extent {
        let mut joined = Extent::sum(parts);
        joined.text = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.text));
        joined.items = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.items));
        joined.longest = joined.longest.max(joined.text);
        joined.most = joined.most.max(joined.items);
        // beside empty lists, the one that is not empty has all items
        let filled: Vec<&Arc<Extent>> = parts.iter().filter(|part| part.items > 0).collect();
        if let [one] = filled.as_slice()
            && let InnerExtent::Elements(element) = &one.inside
        {
            joined.inside = InnerExtent::Elements(Arc::clone(element));
        }
        joined
    }

    /// One of two.
    pub fn union(a: &Arc<Extent>, b: &Arc<Extent>) -> Arc<Extent> {
        if Arc::ptr_eq(a, b) {
            return Arc::clone(a);
        }
        Arc::new(Extent {
            text: a.text.max(b.text),
            items: a.items.max(b.items),
            nodes: a.nodes.max(b.nodes),
            bytes: a.bytes.max(b.bytes),
            longest: a.longest.max(b.longest),
            most: a.most.max(b.most),
            // what has no parts says nothing of the parts of the other
            inside: match (a.most, b.most) {
                (_, 0) => a.inside.clone(),
                (0, _) => b.inside.clone(),
                _ => InnerExtent::Unknown,
            },
        })
    }

    /// After `times` steps that each add what the first one added.
    pub fn after_steps(&self, stepped: &Extent, times: u64) -> Extent {
        let grow = |from: u64, to: u64| from.saturating_add(to.saturating_sub(from).saturating_mul(times));
        let (text, items) = (grow(self.text, stepped.text), grow(self.items, stepped.items));
        Extent {
            text,
            items,
            nodes: grow(self.nodes, stepped.nodes),
            bytes: grow(self.bytes, stepped.bytes),
            longest: stepped.longest.max(self.longest).max(text),
            most: stepped.most.max(self.most).max(items),
            inside: stepped.inside.clone(),
        }
    }

    /// The extent of the member of this name.
    pub fn member(&self, name: &str) -> Arc<Extent> {
        match &self.inside {
            InnerExtent::Members(members) => members.get(name).cloned().unwrap_or_else(|| Arc::new(Extent::plain())),
            InnerExtent::Elements(_) | InnerExtent::Unknown => self.any(),
        }
    }

    /// The extent of any element, key or member.
    pub fn any(&self) -> Arc<Extent> {
        match &self.inside {
            InnerExtent::Elements(element) => Arc::clone(element),
            InnerExtent::Members(_) | InnerExtent::Unknown => Arc::new(Extent {
                text: self.longest,
                items: self.most,
                nodes: self.nodes,
                bytes: self.bytes,
                longest: self.longest,
                most: self.most,
                inside: InnerExtent::Unknown,
            }),
        }
    }

    fn sum(parts: &[Arc<Extent>]) -> Extent {
        let mut sum = Extent { nodes: 1, ..Extent::default() };
        for part in parts {
            sum.nodes = sum.nodes.saturating_add(part.nodes);
            sum.bytes = sum.bytes.saturating_add(part.bytes);
            sum.longest = sum.longest.max(part.longest);
            sum.most = sum.most.max(part.most);
        }
        sum
    }
}

fn measured(value: &Value, depth: usize) -> Result<Extent, String> {
    if depth > VALUE_DEPTH {
        return Err(format!("a value is more than {VALUE_DEPTH} lists and objects deep"));
    }
    match value {
        Value::String(text) => Ok(Extent::text(text.len() as u64)),
        Value::Array(items) => {
            let mut list =
                Extent { items: items.len() as u64, most: items.len() as u64, nodes: 1, ..Extent::default() };
            let mut element = None;
            for item in items {
                let item = measured(item, depth + 1)?;
                list.include(&item);
                element = Some(match element {
                    None => item,
                    Some(either) => max_of(either, item),
                });
            }
            list.inside = element.map_or(InnerExtent::Unknown, |element| InnerExtent::Elements(Arc::new(element)));
            Ok(list)
        }
        Value::Object(fields) => {
            let mut object =
                Extent { items: fields.len() as u64, most: fields.len() as u64, nodes: 1, ..Extent::default() };
            let mut members = BTreeMap::new();
            for (name, field) in fields {
                let field = measured(field, depth + 1)?;
                object.include(&field);
                object.include(&Extent::text(name.len() as u64));
                if fields.len() <= NAMED_MEMBERS {
                    members.insert(name.clone(), Arc::new(field));
                }
            }
            if fields.len() <= NAMED_MEMBERS {
                object.inside = InnerExtent::Members(members);
            }
            Ok(object)
        }
        _ => Ok(Extent::plain()),
    }
}

impl Extent {
    fn include(&mut self, part: &Extent) {
        self.nodes += part.nodes;
        self.bytes += part.bytes;
        self.longest = self.longest.max(part.longest);
        self.most = self.most.max(part.most);
    }
}

/// The most of either of two elements of a list, followed by name.
fn max_of(mut a: Extent, b: Extent) -> Extent {
    let (most_of_a, most_of_b) = (a.most, b.most);
    a.text = a.text.max(b.text);
    a.items = a.items.max(b.items);
    a.nodes = a.nodes.max(b.nodes);
    a.bytes = a.bytes.max(b.bytes);
    a.longest = a.longest.max(b.longest);
    a.most = a.most.max(b.most);
    a.inside = match (a.inside, b.inside) {
        (InnerExtent::Members(mut members), InnerExtent::Members(more)) => {
            for (name, member) in more {
                let both = match members.remove(&name) {
                    None => member,
                    Some(there) => Arc::new(max_of(Arc::unwrap_or_clone(there), Arc::unwrap_or_clone(member))),
                };
                members.insert(name, both);
            }
            match members.len() <= NAMED_MEMBERS {
                true => InnerExtent::Members(members),
                false => InnerExtent::Unknown,
            }
        }
        (InnerExtent::Elements(a), InnerExtent::Elements(b)) => {
            InnerExtent::Elements(Arc::new(max_of(Arc::unwrap_or_clone(a), Arc::unwrap_or_clone(b))))
        }
        // a text, a number or an empty list has nothing inside that could be larger
        (inside, _) if most_of_b == 0 => inside,
        (_, inside) if most_of_a == 0 => inside,
        _ => InnerExtent::Unknown,
    };
    a
}
