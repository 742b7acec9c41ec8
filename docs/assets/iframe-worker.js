// Browsers start no worker from a page that was opened as a file. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve) => (frame.onload = () => resolve(frame.contentWindow)));
      frame.srcdoc =
        "<script>window.postMessage = (data) => frameElement.answer(data)</" + "script>" +
        `<script src="${url}"></` + "script>";
      document.body.append(frame);
    }
    async postMessage(data) {
      const frame = await this.ready;
      frame.dispatchEvent(new frame.MessageEvent("message", { data }));
    }
  };
}
