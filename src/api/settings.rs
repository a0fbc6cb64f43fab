//! The handlers of `/api/settings`: what concerns the whole cluster.

use postroad_cluster::{
    command::Action,
    setting::{self, Description, Setting},
    state::State,
};
use serde_json::json;

use super::{Answer, Core, route::data, unknown, view};
use crate::errors::Failure;

fn row(state: &State, known: &Description) -> view::Setting {
    view::Setting {
        name: known.name.to_owned(),
        value: setting::value(&state.settings, known),
        default: known.default,
        least: known.least,
        most: known.most,
        why: known.why.to_owned(),
    }
}

fn find(name: &str) -> Result<&'static Description, Failure> {
    setting::ALL.iter().find(|known| known.name == name).ok_or_else(|| {
        let names = setting::ALL.iter().map(|known| known.name);
        unknown("SETTING_UNKNOWN", "setting", name, names, "See them all: postroad setting list")
    })
}

impl Core {
    pub(super) async fn setting_list(&self) -> Answer {
        let (state, warnings) = self.state().await?;
        let settings: Vec<view::Setting> = setting::ALL.iter().map(|known| row(&state, known)).collect();
        Ok(data(json!({ "settings": settings })).warn(warnings))
    }

    pub(super) async fn setting_show(&self, name: &str) -> Answer {
        let known = find(name)?;
        let (state, warnings) = self.state().await?;
        Ok(data(row(&state, known)).warn(warnings))
    }

    pub(super) async fn setting_set(&self, name: &str, wanted: view::SettingSet) -> Answer {
        let known = find(name)?;
        let (state, _) = self.state().await?;
        let before = setting::value(&state.settings, known);
        let setting = Setting::parse(name, &wanted.value)
            .map_err(|message| Failure::refused("SETTING_OUT_OF_BOUNDS", message).hint(format!("It stays {before}")))?;
        self.propose(Action::SettingSet { setting }).await?;
        Ok(data(json!({ "name": name, "value": setting.describe().1, "before": before })))
    }
}
