//! From a name to a model: a name, a machine, a request and a wish flow in; what there is, what becomes of it on the
//! machine, and which one to take flow out.

use std::path::PathBuf;

use autoplace_planner::gguf::TensorType;
use autoplace_planner::machine::Machine;
use autoplace_planner::plan::Request;

use crate::choice::{Choice, Contender, Wish, choose, choose_measured};
use crate::error::Error;
use crate::hub::Hub;
use crate::name::Name;
use crate::repository::{Candidate, Repository};

/// What a name stands for on a machine.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pick {
    /// The name that was asked for.
    pub name: Name,
    /// What was left out and why, a sentence for each: files that are no model, headers that cannot be read.
    pub left_out: Vec<String>,
    /// The models whose headers could be read, in the order of the choice's rows.
    pub candidates: Vec<Candidate>,
    /// What becomes of each on the machine, and which one meets the wish best.
    pub choice: Choice,
    /// The first file of the chosen one, if the cache has all its files.
    pub cached: Option<PathBuf>,
}

impl Pick {
    /// The model to take.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if none meets the wish; [`choice`](Self::choice) says what becomes of each.
    pub fn chosen(&self) -> Result<&Candidate, Error> {
        let unmet = || Error::Unmet { name: self.name.to_string(), reason: self.choice.reason.clone() };
        self.choice.chosen.and_then(|chosen| self.candidates.get(chosen)).ok_or_else(unmet)
    }
}

impl Hub {
    /// Chooses among the models that a name stands for, by [`choose`]. Those that the cache has whole come first: if
    /// one of them meets the wish, nothing is requested. Else the repository is listed and headers are read by ranges,
    /// a few MB. No model is fetched.
    ///
    /// # Errors
    ///
    /// As [`repository`](Self::repository), and where no header can be read, the first one's. A wish that nothing meets
    /// is an error of [`Pick::chosen`].
    pub fn pick(&self, name: &Name, machine: &Machine, request: &Request, wish: Wish) -> Result<Pick, Error> {
        self.pick_by(name, |contenders| choose(contenders, machine, request, wish))
    }

    /// The same by [`choose_measured`]: where a part of a model would stay on the host, `measure` is asked for the
    /// rates of its types of weights that are missing there.
    ///
    /// # Errors
    ///
    /// As [`pick`](Self::pick).
    pub fn pick_measured(
        &self,
        name: &Name,
        machine: &Machine,
        request: &Request,
        wish: Wish,
        measure: impl Fn(Machine, &[(TensorType, bool)]) -> Machine,
    ) -> Result<Pick, Error> {
        self.pick_by(name, |contenders| choose_measured(contenders, machine, request, wish, &measure))
    }

    fn pick_by(&self, name: &Name, choose: impl Fn(&[Contender]) -> Choice) -> Result<Pick, Error> {
        let among = |repository: Repository| self.among(name, repository, &choose);
        let here = self.clone().offline(true).repository(name).ok().map(|mut here| {
            here.candidates.retain(|candidate| self.cached(candidate).is_some());
            among(here).ok()
        });
        match here.flatten().filter(|here| here.choice.chosen.is_some()) {
            Some(here) => Ok(here),
            None => among(self.repository(name)?),
        }
    }

    fn among(
        &self,
        name: &Name,
        repository: Repository,
        choose: impl FnOnce(&[Contender]) -> Choice,
    ) -> Result<Pick, Error> {
        let headers = self.headers(&repository);
        let mut left_out: Vec<String> =
            repository.left_out.into_iter().map(|(files, why)| format!("{}: {why}", files.join(", "))).collect();
        let (mut candidates, mut contenders, mut first) = (Vec::new(), Vec::new(), None);
        for (candidate, header) in repository.candidates.into_iter().zip(headers) {
            match header {
                Ok(header) => {
                    contenders.push(Contender::new(candidate.name(), candidate.quant().map(str::to_owned), header));
                    candidates.push(candidate);
                }
                Err(error) => {
                    left_out.push(format!("{} is left out: {error}", candidate.name()));
                    first.get_or_insert(error);
                }
            }
        }
        if let (true, Some(error)) = (contenders.is_empty(), first) {
            return Err(error);
        }
        let choice = choose(&contenders);
        let cached = choice.chosen.and_then(|chosen| self.cached(&candidates[chosen]));
        Ok(Pick { name: name.clone(), left_out, candidates, choice, cached })
    }
}
