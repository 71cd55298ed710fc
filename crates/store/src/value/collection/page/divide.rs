//! Pages made from the items of other pages: halves, unions, selections.

use super::Page;

impl Page {
    /// Moves the items from `at` on to a page of their own.
    pub(crate) fn split_off(&mut self, at: usize) -> Page {
        let right = self.of(self.is_tagged(), (at..self.len()).map(|at| self.numbered(at)));
        self.remove(at, self.len());
        right
    }

    /// Appends the items of another page, which is tagged if this page is.
    pub(crate) fn append(&mut self, other: &Page) {
        assert!(!self.is_headed() && !other.is_headed(), "items stay with their head");
        self.own(other.len(), other.used(), self.stays_even_with_all_of(other));
        for at in 0..other.len() {
            let (item, tag) = other.numbered(at);
            self.insert(self.len(), &[item], tag);
        }
    }

    /// Moves the items chosen by `goes` to a page of their own; both pages keep their order.
    pub(crate) fn take_out(&mut self, goes: &[bool]) -> Page {
        let chosen = |which: bool| {
            let all = (0..self.len()).filter(move |at| goes[*at] == which);
            self.of(self.is_tagged(), all.map(|at| self.numbered(at)))
        };
        let (stays, gone) = (chosen(false), chosen(true));
        *self = stays;
        gone
    }

    /// The same items, with tags.
    pub(crate) fn with_tags(&self, tag: impl Fn(&[u8]) -> u16 + Clone) -> Page {
        self.of(true, (0..self.len()).map(|at| (self.get(at), tag(self.get(at)))))
    }

    /// A page of these items.
    fn of<'a>(&self, tagged: bool, items: impl Iterator<Item = (&'a [u8], u16)> + Clone) -> Page {
        assert!(!self.is_headed(), "items stay with their head");
        let mut page = Page::for_items(tagged, items.clone().map(|(item, _)| item.len()));
        items.for_each(|(item, tag)| page.insert(page.len(), &[item], tag));
        page
    }
}
